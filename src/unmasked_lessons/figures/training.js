// The run of a training, step by step: the weights as a grid, the loss as a curve with a mark.
// The page gives {"steps", "loss", "weights": [step][query][key], "queries", "keys"}; the losses are those of the steps. And
// "wanted", where it knows the key that each query should find.

import { figures, fixed, html, percent, still, svg } from "./figure.js"

const WIDTH = 320
const HEIGHT = 190
const EDGE = { left: 34, right: 10, top: 10, bottom: 34 }
const DURATION = 6000 // of the whole run, in milliseconds

function draw(figure, { steps, loss, weights, queries, keys, wanted = [] }) {
  const last = steps.length - 1
  const x = (step) => EDGE.left + ((WIDTH - EDGE.left - EDGE.right) * (step - steps[0])) / (steps[last] - steps[0] || 1)
  const top = Math.max(...loss)
  const y = (each) => HEIGHT - EDGE.bottom - ((HEIGHT - EDGE.top - EDGE.bottom) * each) / top
  const path = (upto) => loss.slice(0, upto + 1).map((each, k) => `${k ? "L" : "M"}${x(steps[k]).toFixed(1)} ${y(each).toFixed(1)}`).join("")

  const cells = queries.map((_, query) => keys.map((_, key) => html("td", { class: wanted[query] === key && "live-wanted" })))
  const grid = html(
    "table",
    { class: "live-grid" },
    html("caption", {}, `Weights: a row for each query, a column for each key${wanted.length ? "; framed, what it should find" : ""}`),
    html("thead", {}, html("tr", {}, html("td"), ...keys.map((key) => html("th", { scope: "col" }, key)))),
    html("tbody", {}, ...queries.map((query, i) => html("tr", {}, html("th", { scope: "row" }, query), ...cells[i]))),
  )
  const done = svg("path", { class: "live-done" })
  const mark = svg("circle", { r: 5 })
  const curve = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "live-chart live-curve", "text-anchor": "middle", role: "img" },
    svg("path", { d: `M${EDGE.left} ${EDGE.top}V${HEIGHT - EDGE.bottom}H${WIDTH - EDGE.right}` }),
    svg("text", { x: EDGE.left - 6, y: y(top) + 4, "text-anchor": "end" }, fixed(top, 1)),
    svg("text", { x: EDGE.left - 6, y: y(0) + 4, "text-anchor": "end" }, "0"),
    svg("text", { x: x(steps[0]), y: HEIGHT - 18 }, `${steps[0]}`),
    svg("text", { x: x(steps[last]), y: HEIGHT - 18, "text-anchor": "end" }, `${steps[last]}`),
    svg("text", { x: (EDGE.left + WIDTH) / 2, y: HEIGHT - 4 }, "steps"),
    svg("text", { x: (EDGE.left + WIDTH) / 2, y: EDGE.top + 8 }, "loss"),
    svg("path", { d: path(last), class: "live-todo" }),
    done,
    mark,
  )
  const range = html("input", { type: "range", min: 0, max: last, step: 1, "aria-label": "Step of the training", input: () => (pause(), show()) })
  const play = html("button", { type: "button", click: () => (timer ? pause() : run()) })
  const told = html("p", { class: "live-told" })
  figure.append(html("div", { class: "live-slide" }, play, range), html("div", { class: "live-pair" }, grid, curve), told)

  let timer

  function run() {
    if (+range.value === last) range.value = 0
    const from = performance.now() - (DURATION * range.value) / last
    // Who wants less motion gets the end at once, and the slider for what lies between.
    const frame = (now) => {
      range.value = still() ? last : Math.min(last, Math.floor((last * (now - from)) / DURATION))
      timer = +range.value < last ? requestAnimationFrame(frame) : undefined
      show()
    }
    timer = requestAnimationFrame(frame)
    show()
  }

  function pause() {
    cancelAnimationFrame(timer)
    timer = undefined
    show()
  }

  function show() {
    const at = +range.value
    weights[at].forEach((row, i) =>
      row.forEach((weight, j) => {
        cells[i][j].textContent = percent(weight)
        cells[i][j].style.setProperty("--share", weight)
      }),
    )
    done.setAttribute("d", path(at))
    mark.setAttribute("cx", x(steps[at]))
    mark.setAttribute("cy", y(loss[at]))
    curve.setAttribute("aria-label", `The loss is ${fixed(loss[at])} at step ${steps[at]} and ${fixed(loss[last])} at step ${steps[last]}`)
    range.setAttribute("aria-valuetext", `step ${steps[at]}`)
    play.textContent = timer ? "Pause" : "Play"
    told.replaceChildren(html("b", {}, `Step ${steps[at]}.`), ` The loss is ${fixed(loss[at])}.`)
  }

  range.value = 0 // the run is played from its beginning
  show()
}

figures("training", draw)
