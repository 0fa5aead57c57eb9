// Splitting into heads and merging again, step by step, beside three wrong ways that give the same shapes.
// The page gives {"tokens", "heads", "head_dim"}. Each number is known by its token and its feature; nothing is computed
// with them, they only move.

import { figures, html, still, svg } from "./figure.js"

const range = (size) => Array.from({ length: size }, (_, each) => each)

// A tensor as {shape, items}, the items in the order of the memory; and what PyTorch calls by these names.
export const view = ({ items }, ...shape) => ({ shape, items })
export function permute({ shape, items }, ...axes) {
  const strides = shape.map((_, axis) => shape.slice(axis + 1).reduce((a, b) => a * b, 1))
  const [a, b, c] = axes.map((axis) => range(shape[axis]).map((place) => place * strides[axis]))
  return { shape: axes.map((axis) => shape[axis]), items: a.flatMap((x) => b.flatMap((y) => c.map((z) => items[x + y + z]))) }
}

// Each way has five stages: the input, its view, the heads, the heads seen from the tokens again, the output.
export function ways({ tokens: T, heads: H, head_dim: d }) {
  const x = { shape: [T, H * d], items: range(T * H * d) }
  const right = (split) => [x, ...split, ...back(split.at(-1))]
  const back = (heads) => {
    const joined = permute(heads, 1, 0, 2)
    return [joined, view(joined, T, H * d)]
  }
  const views = view(x, T, H, d)
  const heads = permute(views, 1, 0, 2)
  const straight = view(x, H, T, d)
  const swapped = view(x, T, d, H)
  const exchange = ".transpose(0, 1)"
  const axes = ["token", "head in token", "token in head", "head in token", "token"]
  return [
    { name: "right", axes, code: ["x", ".view(T, H, d)", exchange, exchange, ".reshape(T, H * d)"], stages: right([views, heads]) },
    { name: "view without transpose", axes: axes.with(1, axes[2]), code: ["x", ".view(H, T, d)", "", exchange, ".reshape(T, H * d)"], stages: right([straight, straight]) },
    { name: "merge without transpose", axes: axes.with(3, axes[2]), code: ["x", ".view(T, H, d)", exchange, "", ".reshape(T, H * d)"],
      stages: [x, views, heads, heads, view(heads, T, H * d)] },
    { name: "view with axes swapped", axes: axes.with(1, "feature in token"), code: ["x", ".view(T, d, H)", ".permute(2, 0, 1)", exchange, ".reshape(T, H * d)"],
      stages: right([swapped, permute(swapped, 2, 0, 1)]) },
  ]
}

// Which places of a way's stage hold another number than the right way's: of the heads, and of the output.
export const misplaced = (way, right, stage) =>
  stage === 2 || stage === 4 ? way.stages[stage].items.map((item, place) => item !== right.stages[stage].items[place]) : []

const SAID = [
  "Each row is a token; its features belong to the heads in turn.",
  "The features of each token are cut into one piece for each head.",
  "Each head gets its own matrix, with a row for each token. Attention runs here, and leaves each row at its place.",
  "Before the merge the tokens come first again.",
  "The pieces of each token are joined, and the row is whole again.",
]
const [CELL, GAP, TOP] = [26, 10, 18]

function draw(figure, { tokens, heads, head_dim: dim }) {
  const all = ways({ tokens, heads, head_dim: dim })
  const features = heads * dim
  let [stage, chosen] = [2, 1] // where the first wrong way shows

  const SIDE = 58 // of the names at the left
  const shapes = all.flatMap(({ stages }) => stages.map(({ shape }) => (shape.length < 3 ? [1, ...shape] : shape)))
  const width = SIDE + Math.max(...shapes.map(([count, , columns]) => count * (columns * CELL + GAP) - GAP))
  const tall = TOP + Math.max(...shapes.map(([, rows]) => rows)) * CELL

  const pictures = [0, 1].map(() => {
    const title = html("b")
    const code = html("code")
    const told = html("span", { class: "live-said" })
    const cells = range(tokens * features).map((item) => {
      const token = Math.floor(item / features)
      const [box, text] = [svg("rect", { width: CELL - 2, height: CELL - 2, rx: 2 }), svg("text", { x: CELL / 2 - 1, y: CELL / 2 + 4 })]
      text.append(`${"abcdefgh"[token] ?? token}${item % features}`)
      return svg("g", { class: `live-number live-token-${token % 4}` }, box, text)
    })
    const names = svg("g", { class: "live-names" })
    const picture = svg("svg", { viewBox: `0 0 ${width} ${tall}`, class: "live-numbers", role: "img" }, names, ...cells)
    return { title, code, told, cells, names, picture, part: html("div", {}, html("p", {}, title), html("p", { class: "live-step" }, code), picture, html("p", {}, told)) }
  })
  const wrong = all.slice(1).map(({ name }, place) =>
    html("button", { type: "button", click: () => ((chosen = place + 1), show()) }, name))
  const step = html("input", { type: "range", min: 0, max: 4, value: 0, "aria-label": "step", input: () => ((stage = +step.value), show()) })
  const go = (by) => () => ((stage = Math.max(0, Math.min(4, stage + by))), show())
  const [before, after] = [html("button", { type: "button", click: go(-1) }, "back"), html("button", { type: "button", click: go(1) }, "next step")]
  const said = html("p", { class: "live-told", "aria-live": "polite" })
  figure.append(
    html("div", { class: "live-choices", role: "group", "aria-label": "Wrong way" }, html("span", { class: "live-said" }, "beside the right way:"), ...wrong),
    html("div", { class: "live-choices live-steps", role: "group", "aria-label": "Step" }, before, step, after),
    said,
    html("div", { class: "live-pair" }, ...pictures.map(({ part }) => part)),
  )

  function show() {
    const shown = [all[0], all[chosen]]
    step.value = stage
    before.disabled = stage === 0
    after.disabled = stage === 4
    wrong.forEach((button, place) => button.setAttribute("aria-pressed", place + 1 === chosen))
    const letters = range(tokens).map((token) => "abcdefgh"[token] ?? token)
    said.textContent = `Step ${stage} of 4. ${SAID[stage]}`
    pictures.forEach(({ title, code, told, cells, names, picture }, side) => {
      const way = shown[side]
      const { shape, items } = way.stages[stage]
      const off = misplaced(way, all[0], stage)
      const [count, rows, columns] = shape.length < 3 ? [1, ...shape] : shape
      items.forEach((item, place) => {
        const block = Math.floor(place / (rows * columns))
        const row = Math.floor(place / columns) % rows
        const x = SIDE + block * (columns * CELL + GAP) + (place % columns) * CELL
        cells[item].style.transform = `translate(${x}px, ${TOP + row * CELL}px)`
        cells[item].style.transitionDuration = still() ? "0s" : ""
        cells[item].classList.toggle("live-off", off[place] ?? false)
      })
      // What the code takes each row, and each block of rows, for.
      const [inner, outer] = way.axes[stage].split(" in ")
      const called = (axis, place) => `${axis} ${axis === "token" ? letters[place] : place}`
      names.replaceChildren(
        ...range(rows).map((row) => svg("text", { x: 0, y: TOP + row * CELL + 17 }, called(inner, row))),
        ...range(outer ? count : 0).map((block) => svg("text", { x: SIDE + block * (columns * CELL + GAP), y: 12 }, called(outer, block))),
      )
      const wrongly = off.filter(Boolean).length
      title.textContent = side ? way.name : "the right way"
      code.textContent = way.code[stage] || "(no transpose)"
      told.textContent = `shape (${shape.join(", ")})${wrongly ? `: ${wrongly} of ${items.length} numbers in the wrong place` : off.length ? ": every number in its place" : ""}`
      picture.setAttribute("aria-label", `${title.textContent}, step ${stage}: ${told.textContent}`)
    })
  }

  show()
}

// Its styles are there before it is, or what it draws would jump.
if (document.querySelector('[data-live="split"]')) {
  const href = new URL("masks.css", import.meta.url)
  await new Promise((load) => document.head.append(html("link", { rel: "stylesheet", href, load, error: load })))
}
figures("split", draw)
