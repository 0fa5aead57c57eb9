// A window that slides over a text, with tokens at its beginning that stay in sight: who sees whom, in one layer and through
// several. The page gives {"tokens", "layers", "starts": [{"name", "window", "sinks"}]}: the masks of its run by how many
// keys a query sees, its own counted, and how many first tokens stay in sight.

import { figures, html } from "./figure.js"

// Who may see whom: true where a query may see a key.
export const mask = (tokens, window, sinks) =>
  Array.from({ length: tokens }, (_, query) =>
    Array.from({ length: tokens }, (_, key) => key <= query && (query - key < window || key < sinks)))

// Who knows of whom through several layers: each sees what those know that it sees.
export function known(seen, layers) {
  let now = seen
  for (let layer = 1; layer < layers; layer++)
    now = seen.map((row) => row.map((_, key) => row.some((sees, other) => sees && now[other][key])))
  return now
}

const count = (row) => row.filter(Boolean).length
const plural = (number, name) => `${number} ${name}${number === 1 ? "" : "s"}`

function draw(figure, { tokens, layers, starts }) {
  const slide = (name, min, max) => {
    const input = html("input", { type: "range", min, max, step: 1, "aria-label": name, input: show })
    const said = html("label", {}, name)
    return { input, said, part: html("div", { class: "live-slide" }, said, input) }
  }
  const [window, sinks, depth] = [slide("window", 1, tokens), slide("sinks", 0, 4), slide("layers", 1, 4)]
  const buttons = starts.map((start) => html("button", { type: "button", click: () => begin(start) }, start.name))
  const cells = Array.from({ length: tokens }, () => Array.from({ length: tokens }, () => html("td")))
  const names = cells.map((_, place) => html("th", { scope: "col" }, `${place}`))
  const grid = html("table", { class: "live-grid live-reach" },
    html("caption", {}, "rows are queries, columns are keys"),
    html("thead", {}, html("tr", {}, html("td"), ...names)),
    html("tbody", {}, ...cells.map((row, query) => html("tr", {}, html("th", { scope: "row" }, `${query}`), ...row))))
  const told = html("p", { class: "live-told", "aria-live": "polite" })
  const code = html("code")
  figure.append(
    html("div", { class: "live-choices", role: "group", "aria-label": "Begin with" }, ...buttons),
    html("div", { class: "live-pair" }, grid, html("div", {}, window.part, sinks.part, depth.part, told)),
    html("pre", { class: "live-code", tabindex: 0, role: "region", "aria-label": "the code that makes this mask" }, code),
  )

  function begin(start) {
    window.input.value = start.window
    sinks.input.value = start.sinks
    show()
  }

  function show() {
    const [width, first, through] = [window, sinks, depth].map(({ input }) => +input.value)
    window.said.textContent = `window ${width}`
    sinks.said.textContent = `sinks ${first}`
    depth.said.textContent = `layers ${through}`
    const seen = mask(tokens, width, first)
    const knows = known(seen, through)
    starts.forEach((start, k) => buttons[k].setAttribute("aria-pressed", start.window === width && start.sinks === first))
    cells.forEach((row, query) =>
      row.forEach((cell, key) => {
        const [kind, label] = seen[query][key] ? ["live-sees", "seen"] : knows[query][key] ? ["live-knows", "known"] : ["live-blocked", "hidden"]
        cell.className = kind
        cell.setAttribute("aria-label", label)
      }))
    const last = tokens - 1
    const others = count(knows[last]) - 1
    told.replaceChildren(
      html("b", {}, `Token ${last} sees ${plural(count(seen[last]), "key")}`),
      `, and a cache keeps as many of ${tokens}. Through ${plural(through, "layer")} it knows of ${plural(others, "other")}.`,
    )
    const kept = first ? ` | (masks.causal(${tokens}) & (torch.arange(${tokens}) < ${first}))` : ""
    code.textContent = `masks.sliding_window(${tokens}, window=${width})${kept}`
  }

  depth.input.value = layers
  begin(starts[0])
}

figures("long", draw)
