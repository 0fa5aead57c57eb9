// Arrows in a plane that can be moved: their dot products, the softmax of these, and where the average of the arrows lies.
// The page gives {"names", "vectors", "scale", "start", "axes"}; the scale is one over the root of two unless it is given,
// and the first arrow is chosen unless `start` says which; "axes" names what the two numbers of an arrow say. What the
// page's run made of them, "weights" and "context", is what is computed here until an arrow is moved.

import { attention } from "./attention.js"
import { figures, fixed, html, percent, svg, write } from "./figure.js"

const SIZE = 320 // of the plane, in its own units

function draw(figure, { names, vectors, scale, start = 0, axes = ["first number", "second number"] }) {
  const given = vectors.map((vector) => [...vector])
  const arrows = given.map((vector) => [...vector])
  const bound = Math.ceil(1.15 * Math.max(1, ...given.flat().map(Math.abs)))
  const step = 10 ** Math.floor(Math.log10(bound)) / 10
  const out = (value) => (value * SIZE) / 2 / bound
  let chosen = start

  const plane = svg("svg", { viewBox: `${-SIZE / 2} ${-SIZE / 2} ${SIZE} ${SIZE}`, class: "live-plane", role: "group" })
  plane.setAttribute("aria-label", "A plane with an arrow for each word: drag its tip, or move it with the arrow keys")
  const lines = Array.from({ length: 2 * bound + 1 }, (_, k) => out(k - bound)).flatMap((at) => [
    svg("path", { d: `M${at} ${-SIZE / 2}V${SIZE / 2}M${-SIZE / 2} ${at}H${SIZE / 2}`, class: at ? "" : "live-axis" }),
  ])
  const edge = SIZE / 2 - 6
  const said = [
    svg("text", { x: edge, y: 31, "text-anchor": "end" }, `${axes[0]} →`),
    svg("text", { x: 6, y: 12 - edge }, `↑ ${axes[1]}`),
    svg("text", { x: -edge, y: edge, "aria-hidden": true }, "Drag the tip of an arrow"),
  ]
  said.forEach((text) => text.classList.add("live-said"))
  const parts = names.map((name, place) => {
    const line = svg("line", { class: "live-shaft" })
    const head = svg("path", { d: "M0 0L-13 5.5L-13 -5.5Z", class: "live-head" })
    const text = svg("text", { class: "live-name" }, name)
    const moved = svg("line", { class: "live-moved" })
    const mean = svg("circle", { r: 4.5, class: "live-mean" })
    const handle = svg("circle", {
      r: 17,
      class: "live-handle",
      tabindex: 0,
      role: "slider",
      "aria-label": name,
      "aria-valuemin": -bound,
      "aria-valuemax": bound,
      focus: () => choose(place),
      touchstart: (event) => event.preventDefault(), // or the page would scroll
      pointerdown: (event) => {
        choose(place)
        handle.setPointerCapture(event.pointerId)
        handle.focus({ preventScroll: true })
        event.preventDefault()
      },
      pointermove: (event) => {
        if (!handle.hasPointerCapture(event.pointerId)) return
        const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(plane.getScreenCTM().inverse())
        move(place, (point.x * 2 * bound) / SIZE, (-point.y * 2 * bound) / SIZE)
      },
      keydown: (event) => {
        const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key]
        if (!way) return
        event.preventDefault()
        const far = step * (event.shiftKey ? 5 : 1)
        move(place, arrows[place][0] + far * way[0], arrows[place][1] + far * way[1])
      },
    })
    return { line, head, text, moved, mean, handle }
  })
  const layers = ["moved", "line", "head", "mean", "text", "handle"]
  plane.append(...lines, ...said, ...layers.flatMap((layer) => parts.map((part) => part[layer])))

  const tables = ["Dot products", "Weights"].map((title) => {
    const cells = names.map(() => names.map(() => html("td")))
    const head = html("tr", {}, html("td"), ...names.map((name) => html("th", { scope: "col" }, name)))
    const rows = names.map((name, i) => html("tr", {}, html("th", { scope: "row" }, name), ...cells[i]))
    const table = html("table", { class: "live-grid" }, html("caption", {}, title), html("thead", {}, head), html("tbody", {}, ...rows))
    return { cells, rows, table }
  })
  const told = html("p", { class: "live-told" })
  const again = html("button", { type: "button", click: reset }, "Back to the page’s arrows")
  const beside = html("div", { class: "live-beside" }, html("div", { class: "live-tables" }, ...tables.map(({ table }) => table)), told, again)
  figure.append(html("div", { class: "live-pair" }, plane, beside))

  function choose(place) {
    chosen = place
    show()
  }

  function move(place, x, y) {
    const inside = (value) => Math.max(-bound, Math.min(bound, +(Math.round(value / step) * step).toFixed(6)))
    arrows[place] = [inside(x), inside(y)]
    write(said.at(-1), "")
    show()
  }

  function reset() {
    given.forEach((vector, place) => (arrows[place] = [...vector]))
    show()
  }

  function show() {
    const products = attention(arrows, arrows, arrows, { scale: 1 }).scores
    const { weights, context } = attention(arrows, arrows, arrows, { scale })
    parts.forEach(({ line, head, text, moved, mean, handle }, place) => {
      const [x, y] = [out(arrows[place][0]), -out(arrows[place][1])]
      const [to, down] = [out(context[place][0]), -out(context[place][1])]
      const length = Math.hypot(x, y) || 1
      const turn = (Math.atan2(y, x) * 180) / Math.PI
      const set = (element, attributes) => Object.entries(attributes).forEach((each) => element.setAttribute(...each))
      set(line, { x2: x - (9 * x) / length, y2: y - (9 * y) / length })
      set(head, { transform: `translate(${x} ${y}) rotate(${turn})` })
      // A name goes on where its arrow points, and stays inside.
      const isFar = Math.hypot(x, y) < 1 || Math.abs(x) > SIZE / 2 - 12 - text.getComputedTextLength() || Math.abs(x) < length / 2
      const below = Math.abs(y) > SIZE / 2 - 24 ? -14 : 14
      set(text, {
        x: isFar ? Math.max(30 - SIZE / 2, Math.min(SIZE / 2 - 30, x)) : x + Math.sign(x) * 7,
        y: isFar ? y + Math.sign(y || 1) * below + 5 : y + 5,
        "text-anchor": isFar ? "middle" : x > 0 ? "start" : "end",
      })
      set(moved, { x1: x, y1: y, x2: to, y2: down })
      set(mean, { cx: to, cy: down })
      const valuetext = `${fixed(arrows[place][0])} to the right, ${fixed(arrows[place][1])} up`
      set(handle, { cx: x, cy: y, "aria-valuenow": arrows[place][0], "aria-valuetext": valuetext })
      for (const part of [line, head, text, moved, mean]) part.classList.toggle("live-chosen", place === chosen)
    })
    tables.forEach(({ cells, rows }, table) =>
      names.forEach((_, i) => {
        rows[i].classList.toggle("live-chosen", i === chosen)
        names.forEach((_, j) => {
          write(cells[i][j], table ? percent(weights[i][j]) : fixed(products[i][j]))
          cells[i][j].style.setProperty("--share", table ? weights[i][j] : 0)
        })
      }),
    )
    const gives = names.map((name, j) => `${percent(weights[chosen][j])} of ${name}`)
    told.replaceChildren(
      html("b", {}, names[chosen]),
      ` moves to the ring: ${new Intl.ListFormat("en").format(gives)} make (${context[chosen].map((each) => fixed(each)).join(", ")}).`,
    )
    again.disabled = arrows.every((arrow, place) => arrow.every((each, k) => each === given[place][k]))
  }

  show()
}

figures("arrows", draw)
