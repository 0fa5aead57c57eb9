// A query and a key that turn along a text, pair of features by pair, like the hands of clocks: what counts in their dot
// product is the angle between them. The page gives {"query", "key": for each pair its two numbers, "rates": by how much
// each pair turns at a place, "names": of key and query, "hums", "distance": the most of each, "start": [hums, distance]}.

import { dot } from "./attention.js"
import { figures, fixed, html, svg } from "./figure.js"

const [RADIUS, SIZE] = [62, 92] // of a clock, and of half its picture

export const turned = ([x, y], angle) => [x * Math.cos(angle) - y * Math.sin(angle), x * Math.sin(angle) + y * Math.cos(angle)]
export const degrees = ([a, b], [c, d]) => Math.round((Math.abs(Math.atan2(a * d - b * c, a * c + b * d)) * 180) / Math.PI)

// What the clocks show after so many la, with the query so many places after the key.
export function clocks({ query, key, rates }, hums, distance) {
  const hands = rates.map((rate, pair) => [turned(key[pair], rate * hums), turned(query[pair], rate * (hums + distance))])
  const products = hands.map(([one, other]) => dot(one, other))
  return { hands, angles: hands.map(([one, other]) => degrees(one, other)), products, sum: products.reduce((a, b) => a + b) }
}

function draw(figure, data) {
  const { names, rates, start } = data
  const longest = Math.max(...[...data.query, ...data.key].map((hand) => Math.hypot(...hand)))
  const out = ([x, y]) => [(x * RADIUS) / longest, (-y * RADIUS) / longest]

  const faces = rates.map((rate) => {
    const marks = Array.from({ length: 12 }, (_, hour) => svg("path", { d: `M${RADIUS + 4} 0H${RADIUS + 9}`, transform: `rotate(${30 * hour})` }))
    const shafts = names.map((_, k) => svg("line", { class: `live-hand-${k}` }))
    const tips = names.map((_, k) => svg("circle", { r: 5, class: `live-hand-${k}` }))
    const arc = svg("path", { class: "live-between" })
    const picture = svg("svg", { viewBox: `${-SIZE} ${-SIZE} ${2 * SIZE} ${2 * SIZE}`, class: "live-clock", role: "img" },
      svg("circle", { r: RADIUS + 9 }), ...marks, arc, ...shafts, ...tips)
    const said = html("p")
    const turn = `turns by ${fixed((rate * 180) / Math.PI, 0)}° a word`
    return { shafts, tips, arc, picture, said, part: html("div", {}, html("p", { class: "live-said" }, turn), picture, said) }
  })
  const slides = [["la hummed first", 0, data.hums], [`from ${names[0]} to ${names[1]}`, 1, data.distance]].map(([label, min, max], k) =>
    html("input", { type: "range", min, max, value: start[k], "aria-label": label, input: show }))
  const text = html("div", { class: "live-text", "aria-hidden": "true" })
  const told = html("p", { class: "live-told", "aria-live": "polite" })
  figure.append(
    ...slides.map((slide) => html("label", { class: "live-field" }, html("span", {}, slide.getAttribute("aria-label")), slide)),
    text, html("div", { class: "live-pair live-clocks" }, ...faces.map(({ part }) => part)), told,
  )

  function show() {
    const [hums, distance] = slides.map((slide) => +slide.value)
    const { hands, angles, products, sum } = clocks(data, hums, distance)
    const chip = (name, k) => html("span", { class: k === undefined ? "" : `live-hand-${k}` }, name)
    const repeat = (name, count) => Array.from({ length: count }, () => chip(name))
    text.replaceChildren(...repeat("la", hums), chip(names[0], 0), ...repeat("·", distance - 1), chip(names[1], 1))
    faces.forEach(({ shafts, tips, arc, picture, said }, pair) => {
      const ends = hands[pair].map(out)
      ends.forEach(([x, y], k) => {
        for (const [part, at] of [[shafts[k], { x2: x, y2: y }], [tips[k], { cx: x, cy: y }]])
          Object.entries(at).forEach((each) => part.setAttribute(...each))
      })
      const [[a, b], [c, d]] = ends.map(([x, y]) => [(24 * x) / Math.hypot(x, y), (24 * y) / Math.hypot(x, y)])
      arc.setAttribute("d", `M${a} ${b}A24 24 0 0 ${a * d - b * c > 0 ? 1 : 0} ${c} ${d}`)
      said.textContent = `angle ${angles[pair]}°, dot product ${fixed(products[pair])}`
      picture.setAttribute("aria-label", `A clock whose two hands stand ${angles[pair]}° apart`)
    })
    slides[0].setAttribute("aria-valuetext", `${hums} la`)
    slides[1].setAttribute("aria-valuetext", `${distance} place${distance > 1 ? "s" : ""}`)
    told.replaceChildren(`${names[0]} stands at place ${hums + 1}, ${names[1]} at place ${hums + 1 + distance}. `,
      html("b", {}, `Together the dot product is ${fixed(sum)}.`))
  }

  show()
}

figures("turning", draw)
