// Online softmax: tiles move over the scores of one query; the largest score, the sum of the exponentials and the average
// of the values change. The page gives {"scores", "hidden", "values", "sizes"}: the scores of a query, which of its keys it
// may not see, a value of one number for each key, and the sizes of tiles to choose from.

import { online } from "./attention.js"
import { figures, fixed, html, svg } from "./figure.js"

const WIDTH = 320
const HEIGHT = 132 // of the bars
const [TOP, FOOT] = [16, 36]

function draw(figure, { scores, hidden, values, sizes }) {
  const seen = scores.map((score, key) => (hidden[key] ? -Infinity : score))
  const visible = seen.filter(Number.isFinite)
  const [low, high] = [Math.min(0, ...visible), Math.max(0, ...visible)]
  const y = (score) => TOP + (HEIGHT * (high - score)) / (high - low)
  const step = WIDTH / scores.length
  const number = (value) => (value === -Infinity ? "−∞" : fixed(value))
  let [tile, states] = [sizes[0], []]

  const choices = sizes.map((size) => html("button", { type: "button", click: () => cut(size) }, size === 1 ? "1 key" : size === scores.length ? `all ${size}` : `${size} keys`))
  const label = html("label")
  const range = html("input", { type: "range", min: 0, step: 1, "aria-label": "Tiles that have been seen", input: show })

  const frame = svg("path", { class: "live-tile" })
  const line = svg("path", { class: "live-largest" })
  const bars = seen.map((score, key) =>
    Number.isFinite(score) ? svg("rect", { x: key * step + 3, width: step - 6, y: y(Math.max(score, 0)), height: Math.max(1, Math.abs(y(0) - y(score))), rx: 2 }) : svg("text", { x: (key + 0.5) * step, y: y(0) - 4 }, "−∞"),
  )
  const under = values.map((value, key) => svg("text", { x: (key + 0.5) * step, y: TOP + HEIGHT + 30 }, fixed(value, 1)))
  const chart = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${TOP + HEIGHT + FOOT}`, class: "live-chart live-row", "text-anchor": "middle", role: "img" },
    frame,
    svg("path", { d: `M0 ${y(0)}H${WIDTH}` }),
    ...bars,
    line,
    ...scores.map((_, key) => svg("text", { x: (key + 0.5) * step, y: TOP + HEIGHT + 14 }, `${key}`)),
    ...under,
  )
  const rows = ["Largest score", "Sum of exponentials", "Average of values"]
  const cells = rows.map(() => ["before", "this tile", "after"].map(() => html("td")))
  const table = html(
    "table",
    { class: "live-grid" },
    html("thead", {}, html("tr", {}, html("td"), ...["before", "this tile", "after"].map((name) => html("th", { scope: "col" }, name)))),
    html("tbody", {}, ...rows.map((name, row) => html("tr", {}, html("th", { scope: "row" }, name), ...cells[row]))),
  )
  const told = html("p", { class: "live-told", "aria-live": "polite" })
  figure.append(
    html("div", { class: "live-choices", role: "group", "aria-label": "Keys in a tile" }, ...choices),
    html("div", { class: "live-slide" }, label, range),
    html(
      "div",
      { class: "live-pair" },
      html("div", {}, html("p", { class: "live-said" }, "The scores of one query; below each, its key and the key's value"), chart),
      html("div", {}, html("p", { class: "live-said" }, "What is kept of the keys that have been seen"), table),
    ),
    told,
  )

  function cut(size) {
    tile = size
    states = online(seen, values.map((value) => [value]), tile)
    choices.forEach((each, k) => each.setAttribute("aria-pressed", sizes[k] === tile))
    range.max = states.length - 1
    range.value = range.max // what the row comes to
    show()
  }

  function show() {
    const at = +range.value
    const [after, before] = [states[at], states[Math.max(0, at - 1)]]
    const [from, to] = at ? [after.start, Math.min(after.start + tile, scores.length)] : [0, 0]
    const alone = at ? online(seen.slice(from, to), values.slice(from, to).map((value) => [value]), tile)[1] : states[0]
    const of = ({ largest, total, average }) => [number(largest), fixed(total), total ? fixed(average[0]) : "none"]
    const columns = at ? [of(before), [number(alone.largest), fixed(after.share), of(alone)[2]], of(after)] : [["", "", ""], ["", "", ""], of(after)]
    cells.forEach((row, k) => row.forEach((cell, column) => (cell.textContent = columns[column][k])))
    bars.forEach((bar, key) => bar.setAttribute("class", key >= to ? "live-later" : key >= from ? "live-now" : "live-seen"))
    frame.setAttribute("d", at ? `M${from * step} 1H${to * step}V${TOP + HEIGHT + FOOT - 1}H${from * step}Z` : "")
    line.setAttribute("d", Number.isFinite(after.largest) ? `M0 ${y(after.largest)}H${to * step}` : "")
    label.textContent = `tile ${at} of ${states.length - 1}`
    range.setAttribute("aria-valuetext", label.textContent)
    chart.setAttribute("aria-label", `The scores ${seen.map(number).join(", ")}. ${to} of ${scores.length} keys have been seen; the largest score is ${number(after.largest)}`)
    told.textContent = say(at, before, after) + (at === states.length - 1 ? ` All keys have been seen: the average is ${fixed(after.average[0])}, with tiles of any size.` : "")
  }

  function say(at, before, after) {
    if (!at) return "Nothing has been seen: the largest score is −∞, and both sums are 0."
    if (after.largest === -Infinity) return "This query may see none of these keys. The exponentials are measured from 0, since −∞ − (−∞) is NaN."
    if (before.largest === -Infinity) return `The first keys that it sees. Their exponentials are measured from ${number(after.largest)}.`
    if (after.factor < 1) return `The largest score has grown by ${fixed(after.largest - before.largest)}. What was summed up before is multiplied by ${fixed(after.factor)}.`
    return "The largest score has stayed, so what was summed up before stays, too."
  }

  cut(sizes[Math.floor(sizes.length / 2)])
}

figures("tiles", draw)
