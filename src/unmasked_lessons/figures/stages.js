// One matrix on its way through attention: every query times every key, toned down, masked, turned into shares, and the
// averages of the values. The mask is painted on the scores, and each stage below them follows.
// The page gives {"words", "features", "queries", "keys", "values", "mask"}: a row for each word, the names of the columns
// of the values, and the mask to begin with, true where a query may see a key.

import { average, scores, weights } from "./attention.js"
import { figures, fixed, html, write } from "./figure.js"
import { canvas, fill, starts } from "./painter.js"

// What a query that may see nothing gets is what the softmax gives it, zero divided by zero.
export function stages({ queries, keys, values }, seen) {
  const compared = scores(queries, keys)
  const shares = weights(compared, { mask: seen, blind: NaN })
  return { products: scores(queries, keys, { scale: 1 }), scores: compared, weights: shares, context: average(shares, values) }
}

function draw(figure, data) {
  const { words, features, queries, mask } = data
  let seen = mask
  let chosen = words.length - 1

  const { buttons, rows } = canvas(words, (query, key) => seen[query][key], paint)
  const cells = (columns) => words.map(() => columns.map(() => html("td")))
  const [products, scaled, shares, context] = [words, words, words, features].map(cells)
  const named = (given) => given.map((row, query) => html("tr", {}, html("th", { scope: "row" }, words[query]), ...row))
  const table = (caption, columns, body, name = "") =>
    html("table", { class: `live-grid ${name}` },
      html("caption", {}, caption),
      html("thead", {}, html("tr", {}, html("td"), ...columns.map((each) => html("th", { scope: "col" }, each)))),
      html("tbody", {}, ...body))
  const grids = [
    table("1. Q Kᵀ: each query with each key", words, named(products)),
    table(`2. Divide by √${queries[0].length}: the scores`, words, named(scaled)),
    table("3. Mask: click to hide or to show", words, rows, "live-mask"),
    table("4. Softmax: the shares of each row", words, named(shares), "live-out"),
    table("5. Times V: the new vectors", features, named(context)),
  ]
  const told = html("p", { class: "live-told", "aria-live": "polite" })
  const begin = starts(words, (filled) => ((seen = filled), show()))
  figure.append(
    html("div", { class: "live-choices", role: "group", "aria-label": "Begin with" }, html("span", { class: "live-said" }, "mask"), ...begin.buttons),
    told,
    html("span", { class: "live-axis-name" }, "rows are queries, columns are keys"),
    html("div", { class: "live-tower" }, ...grids),
  )
  const follow = ({ target }) => {
    const row = target.closest("tbody tr")
    if (row) (chosen = row.sectionRowIndex), show()
  }
  figure.addEventListener("pointerover", follow)
  figure.addEventListener("focusin", follow)

  function paint(query, key, sees) {
    seen = seen.map((row, at) => row.map((was, place) => (at === query && place === key ? sees : was)))
    chosen = query
    show()
  }

  function show() {
    const found = stages(data, seen)
    const put = (into, table) =>
      table.forEach((row, i) => row.forEach((each, j) => write(into[i][j], fixed(each, Number.isInteger(each) ? 0 : 2))))
    put(products, found.products)
    put(scaled, found.scores)
    put(context, found.context)
    begin.tell(seen)
    found.weights.forEach((row, i) =>
      row.forEach((share, j) => {
        fill(shares[i][j], share, seen[i][j], false)
        const button = buttons[i][j]
        write(button, seen[i][j] ? scaled[i][j].textContent : "−∞")
        button.classList.toggle("live-sees", seen[i][j])
        button.setAttribute("aria-label", `query ${words[i]}, key ${words[j]}: ${seen[i][j] ? `score ${button.textContent}` : "hidden"}`)
      }),
    )
    for (const grid of grids) [...grid.tBodies[0].rows].forEach((row, i) => row.classList.toggle("live-chosen", i === chosen))
    const visible = words.filter((_, key) => seen[chosen][key]).map((word) => `“${word}”`)
    const becomes = features.map((name, k) => `${name} ${context[chosen][k].textContent}`).join(", ")
    told.replaceChildren(
      html("b", {}, words[chosen]),
      visible.length
        ? ` may see ${new Intl.ListFormat("en").format(visible)}, and becomes ${becomes}.`
        : " may see nothing: each share is zero divided by zero, and NaN is all that it becomes.",
    )
  }

  show()
}

figures("stages", draw)
