// A mask to break, and the check that finds it: a token is changed, and an output before it moves, or none does.
// The page gives {"x", "changed": two rows for each token, "masks": {name: true where a query may see a key}}; the first mask
// is right. What is seen is computed as its run does: queries, keys and values are the tokens themselves.

import { average, scores, weights } from "./attention.js"
import { figures, fixed, html, write } from "./figure.js"
import { canvas } from "./painter.js"

export const attend = (x, mask) => average(weights(scores(x, x), { mask, blind: NaN }), x)

// By how much each output moves if one token is changed, the largest of its features.
export function moves(x, changed, mask, token) {
  const before = attend(x, mask)
  const after = attend(x.map((row, place) => (place === token ? changed[place] : row)), mask)
  return before.map((row, i) => Math.max(...row.map((each, k) => Math.abs(each - after[i][k]))))
}

function draw(figure, { x, changed, masks }) {
  const names = Object.keys(masks)
  const right = masks[names[0]]
  const words = x.map((_, place) => `${place}`)
  let seen = right

  const buttons = names.map((name) => html("button", { type: "button", click: () => ((seen = masks[name]), show()) }, name))
  const painted = canvas(words, (query, key) => seen[query][key], (query, key, sees) => {
    seen = seen.map((row, i) => row.map((was, j) => (i === query && j === key ? sees : was)))
    show()
  })
  const head = words.map((word) => html("th", { scope: "col" }, word))
  const checks = ["no leak", "no NaN", "nothing missed"].map((name) => {
    const [mark, said] = [html("b"), html("span")]
    return { name, mark, said, part: html("p", { class: "live-verdict" }, mark, said) }
  })
  figure.append(
    html("div", { class: "live-choices", role: "group", "aria-label": "Masks" }, ...buttons),
    html("div", { class: "live-pair" },
      html("table", { class: "live-grid live-mask" },
        html("caption", {}, "who sees whom: click, or draw over the cells"),
        html("thead", {}, html("tr", {}, html("td"), ...head)),
        html("tbody", {}, ...painted.rows)),
      html("div", { role: "status" }, ...checks.map(({ part }) => part))),
  )

  function show() {
    names.forEach((name, k) => buttons[k].setAttribute("aria-pressed", seen.every((row, i) => row.every((sees, j) => sees === masks[name][i][j]))))
    seen.forEach((row, query) =>
      row.forEach((sees, key) => {
        const button = painted.buttons[query][key]
        write(button, sees ? "True" : "False")
        button.classList.toggle("live-sees", sees)
        button.setAttribute("aria-label", `query ${query}, key ${key}: ${button.textContent}`)
      }))
    const leak = words.flatMap((_, token) =>
      moves(x, changed, seen, token).slice(0, token).map((by, output) => ({ token, output, by }))).filter(({ by }) => by > 1e-6).sort((a, b) => b.by - a.by)[0]
    const blind = seen.findIndex((row) => !row.includes(true))
    const lost = right.flatMap((row, i) => row.map((sees, j) => sees && !seen[i][j] && [i, j])).find(Boolean)
    tell(0, leak, leak && `token ${leak.token} was changed, and output ${leak.output} moved by ${fixed(leak.by)}`, "a later token is changed, and no earlier output moves")
    tell(1, blind >= 0, `query ${blind} may see nothing: zero is divided by zero`, "each query sees a key")
    tell(2, lost, lost && `query ${lost[0]} does not see key ${lost[1]}`, "each query sees all up to itself")
  }

  function tell(place, isBroken, broken, holds) {
    const { name, mark, said, part } = checks[place]
    part.classList.toggle("live-broken", Boolean(isBroken))
    mark.textContent = `${isBroken ? "✗" : "✓"} ${name}: `
    said.textContent = `${isBroken ? broken : holds}.`
  }

  show()
}

figures("check", draw)
