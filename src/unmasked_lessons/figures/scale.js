// What dividing by the root of d does: a slider over d, without the root on one side, with it on the other.
// The page gives, for each of its "sizes", "scaled" and "unscaled": the weights of a query, from the largest to the
// smallest, on average; and "gradient_scaled" and "gradient_unscaled": the norms of the gradients of queries, as many
// at each size, from the smallest to the largest.

import { figures, html, percent, svg } from "./figure.js"

const WIDTH = 320
const HEIGHT = 90
const LEAST = -8 // powers of ten below it are drawn there

function draw(figure, data) {
  const { sizes } = data
  const sides = [side("Without the root", data.unscaled, data.gradient_unscaled), side("Divided by the root of d", data.scaled, data.gradient_scaled)]
  const range = html("input", { type: "range", min: 0, max: sizes.length - 1, step: 1, "aria-label": "d, the number of features", input: show })
  const size = html("output")
  const marks = html("div", { class: "live-marks", "aria-hidden": "true" }, ...sizes.map((each) => html("span", {}, `${each}`)))
  const told = html("p", { class: "live-told" })
  figure.append(
    html("div", { class: "live-slide" }, html("label", {}, size), html("div", {}, range, marks)),
    html("div", { class: "live-pair" }, ...sides.map((each) => each.element)),
    told,
  )

  function side(title, weights, gradients) {
    const all = [...data.gradient_unscaled.flat(), ...data.gradient_scaled.flat()].filter((norm) => norm > 0).map(Math.log10)
    const low = Math.max(Math.floor(Math.min(...all)), LEAST)
    const high = Math.ceil(Math.max(...all))
    const along = (norm) => 24 + ((WIDTH - 42) * (Math.max(low, Math.log10(norm)) - low)) / (high - low)

    const step = WIDTH / weights[0].length
    const bars = weights[0].map((_, k) => svg("rect", { x: k * step + 2, width: step - 4, rx: 2 }))
    const first = svg("text", { x: step / 2 })
    const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + 18}`, class: "live-chart", "text-anchor": "middle", role: "img" }, ...bars, first)
    const ticks = Array.from({ length: Math.floor((high - low) / 2) + 1 }, (_, k) => low + 2 * k)
    const dots = gradients[0].map(() => svg("circle", { r: 4, cy: 16 }))
    const strip = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} 54`, class: "live-chart", "text-anchor": "middle", role: "img" },
      svg("path", { d: `M0 30H${WIDTH}` }),
      ...ticks.map((tick) =>
        svg("text", { x: along(10 ** tick), y: 49 }, tick === LEAST ? "≤10" : "10", svg("tspan", { dy: -5, "font-size": "11px" }, `${tick}`.replace("-", "−"))),
      ),
      ...dots,
    )
    const element = html(
      "div",
      {},
      html("p", {}, html("b", {}, title)),
      html("p", { class: "live-said" }, "The weights of a query, the largest first"),
      chart,
      html("p", { class: "live-said" }, "How long the gradients of the queries are"),
      strip,
    )
    return { element, show }

    function show(at) {
      bars.forEach((bar, k) => {
        const height = Math.max(1, weights[at][k] * HEIGHT)
        bar.style.y = `${HEIGHT + 18 - height}px`
        bar.style.height = `${height}px`
      })
      first.textContent = percent(weights[at][0])
      first.style.transform = `translateY(${HEIGHT + 12 - weights[at][0] * HEIGHT}px)`
      dots.forEach((dot, k) => (dot.style.cx = `${along(gradients[at][k])}px`))
      const [least, most] = [gradients[at][0], gradients[at].at(-1)]
      chart.setAttribute("aria-label", `${title}: the weights are ${weights[at].map(percent).join(", ")}`)
      strip.setAttribute("aria-label", `${title}: the gradients are from ${least.toPrecision(1)} to ${most.toPrecision(1)} long`)
    }
  }

  function show() {
    const at = +range.value
    size.textContent = `d = ${sizes[at]}`
    range.setAttribute("aria-valuetext", size.textContent)
    sides.forEach((each) => each.show(at))
    const [plain, scaled] = [data.unscaled[at][0], data.scaled[at][0]].map(percent)
    told.textContent = `With ${sizes[at]} features, the largest of ${data.scaled[at].length} weights is ${plain} without the root, and ${scaled} with it.`
  }

  range.value = sizes.length - 1
  show()
}

figures("scale", draw)
