// What four kinds of attention keep of a text: sliders for the sizes of a model and the length of the text, a bar for each kind.
// The page gives {"sizes": {"layers", "heads", "features"}, "tokens", "latent": numbers of one, "kinds": {name: heads of
// keys, or null for a latent}, "bytes": {name: of a token}}, as its run counted them in caches of the library.

import { figures, html } from "./figure.js"

const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"]
export function size(bytes) {
  const power = bytes < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(bytes) / 10))
  return `${+(bytes / 1024 ** power).toPrecision(3)} ${UNITS[power]}`
}

// Numbers that a layer keeps of a token: a key and a value for each head that has its own, or a latent.
export const numbers = (heads, features, latent) => (heads === null ? latent : 2 * heads * features)

function draw(figure, { sizes, tokens, latent, kinds, bytes }) {
  const [first] = Object.keys(kinds)
  const width = bytes[first] / (sizes.layers * numbers(kinds[first], sizes.features, latent)) // bytes of a number
  const shared = Object.values(kinds).find((heads) => heads !== null && heads > 1 && heads < sizes.heads)
  const powers = (from, to) => Array.from({ length: to - from + 1 }, (_, k) => 2 ** (from + k))

  const slide = (name, values, start) => {
    const input = html("input", { type: "range", min: 0, max: values.length - 1, step: 1, "aria-label": name, input: show })
    const said = html("label")
    input.value = values.indexOf(start)
    const value = () => values[+input.value]
    const tell = () => {
      said.textContent = `${value().toLocaleString("en")} ${name}`
      input.setAttribute("aria-valuetext", said.textContent)
    }
    return { part: html("div", { class: "live-slide" }, said, input), value, tell }
  }
  const layers = slide("layers", Array.from({ length: 128 }, (_, k) => k + 1), sizes.layers)
  const heads = slide("heads of queries", powers(3, 7), sizes.heads)
  const group = slide("share a key", powers(1, 4), sizes.heads / shared)
  const features = slide("features of a head", powers(5, 8), sizes.features)
  const length = slide("tokens", powers(10, 20), tokens)
  const all = [layers, heads, group, features, length]

  const rows = Object.keys(kinds).map((kind) => {
    const [bar, said] = [html("span", { class: "live-bar" }), html("span", { class: "live-share" })]
    return { kind, bar, said, parts: [html("span", { class: "live-word" }, kind), bar, said] }
  })
  const told = html("p", { class: "live-told", "aria-live": "polite" })
  figure.append(
    html("div", { class: "live-pair" }, html("div", {}, ...all.map(({ part }) => part)), html("div", {},
      html("div", { class: "live-bars" }, ...rows.flatMap(({ parts }) => parts)), told)),
  )

  function show() {
    for (const each of all) each.tell()
    const of = (kind) => (kinds[kind] === null ? null : kind === first ? heads.value() : kinds[kind] === 1 ? 1 : heads.value() / Math.min(group.value(), heads.value()))
    const token = (kind) => layers.value() * numbers(of(kind), features.value(), latent) * width
    const largest = Math.max(...rows.map(({ kind }) => token(kind)))
    for (const { kind, bar, said } of rows) {
      bar.style.setProperty("--share", token(kind) / largest)
      said.textContent = size(token(kind) * length.value())
    }
    const kept = rows.map(({ kind }) => `${token(kind).toLocaleString("en")} (${kind})`).join(", ")
    told.textContent = `Bytes of a token: ${kept}. Each step reads all that is kept of the text.`
  }

  show()
}

figures("grouped", draw)
