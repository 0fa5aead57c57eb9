// A mask to paint: what an interface of PyTorch makes of it, who sees whom, and the code that makes it.
// The page gives {"words", "scores", "mask", "interfaces": [{"kind", "name", "allows", "blind"}]}: the mask to begin with,
// true where a query may see a key; and of each interface what its run found: whether True allows, and what the weights
// of a query that may see nothing are, "zeros" or "NaN". Another interface gets another mask: who sees whom stays.

import { weights } from "./attention.js"
import { figures, html, percent, write } from "./figure.js"

const CALLS = {
  boolean: "context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)",
  additive: "context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)",
  module: "context, weights = module(x, x, x, attn_mask=mask)",
  padding: "context, weights = module(x, x, x, key_padding_mask=mask)",
}

// What a program begins with that calls it, for as many words.
const FUNCTION = (n) => `import torch.nn.functional as F\n\nquery = key = value = torch.randn(1, ${n}, 8)`
const MODULE = (n) => `from torch import nn\n\nx = torch.randn(1, ${n}, 8)\nmodule = nn.MultiheadAttention(8, 1, batch_first=True)`
const BEGINS = { boolean: FUNCTION, additive: FUNCTION, module: MODULE, padding: MODULE }

// What an interface is given for who may see whom, what its weights are, and the code. All of them are pure.
export function entries({ kind, allows }, seen) {
  const given = kind === "padding" ? [seen[0].map((_, key) => seen.some((row) => row[key]))] : seen
  return given.map((row) => row.map((sees) => (kind === "additive" ? (sees ? 0 : -Infinity) : sees === allows)))
}

export function read({ kind, allows }, given, queries) {
  const sees = given.map((row) => row.map((entry) => (kind === "additive" ? entry === 0 : entry === allows)))
  return kind === "padding" ? Array.from({ length: queries }, () => sees[0]) : sees
}

export function weigh({ kind, blind }, given, scores, seen) {
  const none = blind === "NaN" ? NaN : 0
  return kind === "additive" ? weights(scores, { bias: given, blind: none }) : weights(scores, { mask: seen, blind: none })
}

export function code({ kind, allows }, seen) {
  const [queries, keys] = [seen.length, seen[0].length]
  const size = `${queries}, ${keys}`
  const says = kind !== "additive" && allows // True allows
  const isCausal = seen.every((row, query) => row.every((sees, key) => sees === key <= query))
  const bits = (row) => `[${row.map((sees) => (sees === says ? 1 : 0)).join(", ")}]`
  let made
  if (kind === "padding") made = `torch.tensor([${bits(seen[0].map((_, key) => seen.some((row) => row[key])))}]).bool()`
  else if (isCausal) made = `torch.ones(${size}, dtype=torch.bool).${says ? "tril()" : "triu(1)"}`
  else made = `torch.tensor([\n${seen.map((row) => `    ${bits(row)},\n`).join("")}]).bool()`
  const means = `  # True: may ${says ? "" : "not "}attend`
  const lines =
    kind === "additive"
      ? [`blocked = ${made}`, `mask = torch.zeros(${size}).masked_fill(blocked, -torch.inf)  # added to the scores`]
      : [`mask = ${made}${kind === "padding" ? `  # batch keys; True: ${says ? "real" : "padding"}` : means}`]
  return [...lines, CALLS[kind]].join("\n")
}

// A program that runs alone.
export const program = (one, seen) => `import torch\n${BEGINS[one.kind](seen.length)}\n${code(one, seen)}\n`

const STARTS = {
  causal: (query, key) => key <= query,
  window: (query, key) => key <= query && query - key < 2,
  "padding in front": (query, key) => key >= 2 && key <= query,
  everything: () => true,
}

// Buttons that fill a mask in, and call back with it; and what tells which of these a mask is.
export function starts(words, take) {
  const filled = Object.values(STARTS).map((rule) => words.map((_, query) => words.map((_, key) => rule(query, key))))
  const buttons = Object.keys(STARTS).map((name, k) => html("button", { type: "button", click: () => take(filled[k]) }, name))
  const is = (one, other) => one.every((row, query) => row.every((sees, key) => sees === other[query][key]))
  const tell = (seen) => buttons.forEach((button, k) => button.setAttribute("aria-pressed", is(filled[k], seen)))
  return { buttons, tell }
}

// The cells of a mask, in rows: they are painted by the pointer, or one by one by key, and the arrow keys lead on.
// sees says what a query sees now; paint is called with what it shall see.
export function canvas(words, sees, paint) {
  let brush // what is painted while the pointer is down
  const buttons = words.map((_, query) =>
    words.map((_, key) =>
      html("button", {
        type: "button",
        tabindex: query + key ? -1 : 0,
        click: (event) => event.detail || paint(query, key, !sees(query, key)), // by keyboard; the pointer is below
        pointerdown: (event) => {
          if (event.button) return
          brush = !sees(query, key)
          paint(query, key, brush)
          event.target.releasePointerCapture?.(event.pointerId)
        },
        pointerenter: (event) => event.buttons === 1 && brush !== undefined && paint(query, key, brush),
        focus: () => reach(query, key),
        keydown: (event) => {
          const way = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key]
          const next = way && buttons[query + way[0]]?.[key + way[1]]
          if (next && !next.closest("tr").hidden) (event.preventDefault(), next.focus())
        },
      }),
    ),
  )
  addEventListener("pointerup", () => (brush = undefined))
  const rows = words.map((word, query) =>
    html("tr", {}, html("th", { scope: "row" }, word), ...buttons[query].map((button) => html("td", {}, button))),
  )

  function reach(query, key) {
    for (const button of buttons.flat()) button.tabIndex = -1
    buttons[query][key].tabIndex = 0
  }

  return { buttons, rows, reach }
}

// What stands in the cell of a weight.
export function fill(cell, share, sees, leak) {
  write(cell, Number.isNaN(share) ? "NaN" : share || sees ? percent(share) : "")
  cell.style.setProperty("--share", share || 0)
  cell.className = Number.isNaN(share) ? "live-nan" : leak ? "live-leak" : sees ? "" : "live-blocked"
}

function draw(figure, { words, scores, mask, interfaces }) {
  const n = words.length
  let chosen = interfaces[0]
  let seen = mask.map((row) => [...row])

  const begin = starts(words, (filled) => take(chosen, filled))
  const choose = interfaces.map((each) => html("button", { type: "button", click: () => take(each, seen) }, each.name))
  const turn = html("button", { type: "button", click: () => take(chosen, seen.map((row) => row.map((sees) => !sees))) }, "the opposite: ~mask")

  const heads = () => html("tr", {}, html("td"), ...words.map((word) => html("th", { scope: "col" }, html("span", {}, word))))
  const table = (className, caption, body) =>
    html("table", { class: `live-grid ${className}` }, caption, html("thead", {}, heads()), html("tbody", {}, ...body))
  const captions = [html("caption"), html("caption", {}, "the weights that come out")]
  const { buttons, rows, reach } = canvas(words, (query, key) => seen[query][key], paint)
  const cells = words.map(() => words.map(() => html("td")))
  const results = words.map((word, query) => html("tr", {}, html("th", { scope: "row" }, word), ...cells[query]))
  const told = html("p", { class: "live-told", "aria-live": "polite" })
  const shown = html("code")
  const copied = html("span", { role: "status" })
  const copy = html("button", { type: "button", click: () => navigator.clipboard.writeText(program(chosen, seen)).then(() => (copied.textContent = "Copied")) }, "Copy as a program")
  const group = (label, ...inside) => html("div", { class: "live-choices", role: "group", "aria-label": label }, ...inside)
  figure.append(
    group("Interface", ...choose),
    group("Begin with", html("span", { class: "live-said" }, "begin with"), ...begin.buttons, turn),
    html("div", { class: "live-pair" },
      html("div", {}, html("span", { class: "live-axis-name" }, "rows are queries, columns are keys"), table("live-mask", captions[0], rows)),
      html("div", {}, html("span", { class: "live-axis-name" }, "rows are queries, columns are keys"), table("live-out", captions[1], results))),
    told,
    html("pre", { class: "live-code", tabindex: 0, role: "region", "aria-label": "the code that makes this mask" }, shown),
    group("Code", copy, copied),
  )

  function take(one, sees) {
    chosen = one
    seen = read(chosen, entries(chosen, sees), n)
    show()
  }

  function paint(query, key, sees) {
    const every = chosen.kind === "padding"
    seen = seen.map((row, at) => row.map((was, place) => (place === key && (every || at === query) ? sees : was)))
    show()
  }

  function show() {
    const given = entries(chosen, seen)
    const shares = weigh(chosen, given, scores, seen)
    const one = given.length === 1
    const name = one ? "key_padding_mask" : "attn_mask"
    captions[0].textContent = `${name}: click, or draw over the cells`
    begin.tell(seen)
    interfaces.forEach((each, place) => choose[place].setAttribute("aria-pressed", each === chosen))
    rows.forEach((row, query) => {
      row.hidden = query >= given.length
      row.firstChild.textContent = one ? "all" : words[query]
    })
    if (one && buttons.flat().findIndex((button) => !button.tabIndex) >= n) reach(0, 0)
    given.forEach((row, query) =>
      row.forEach((entry, key) => {
        const text = typeof entry === "boolean" ? (entry ? "True" : "False") : entry ? "−inf" : "0"
        const button = buttons[query][key]
        write(button, text)
        button.classList.toggle("live-sees", seen[query][key])
        button.setAttribute("aria-label", `${one ? "all queries" : `query ${words[query]}`}, key ${words[key]}: ${text}`)
      }),
    )
    const leaks = []
    shares.forEach((row, query) =>
      row.forEach((share, key) => {
        const leak = key > query && share > 0
        if (leak) leaks.push(`“${words[query]}” sees “${words[key]}”`)
        fill(cells[query][key], share, seen[query][key], leak)
      }),
    )
    const blind = words.filter((_, query) => !seen[query].some(Boolean)).map((word) => `“${word}”`)
    const list = (names) => new Intl.ListFormat("en").format(names.slice(0, 3).concat(names.length > 3 ? [`${names.length - 3} more`] : []))
    told.replaceChildren(
      html("b", {}, leaks.length ? `${leaks.length} ${leaks.length > 1 ? "weights look" : "weight looks"} into the future: ` : "No query sees the future."),
      leaks.length ? `${list(leaks)}.` : "",
      blind.length ? ` ${list(blind)} may see nothing: the weights are ${chosen.blind}.` : " Each query sees something.",
    )
    shown.textContent = code(chosen, seen)
    copied.textContent = ""
  }

  show()
}

// Its styles are there before it is, or what it draws would jump.
if (document.querySelector('[data-live="painter"], [data-live="stages"], [data-live="check"]')) {
  const href = new URL("masks.css", import.meta.url)
  await new Promise((load) => document.head.append(html("link", { rel: "stylesheet", href, load, error: load })))
}
figures("painter", draw)
