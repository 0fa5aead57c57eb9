// The trained singer, in double precision: all that it computes on the way from words to the next word.
// The page gives {"words": those that it knows, "heads", "length": how many words it can see, "parameters": {name: [step, a
// text for each row]}}. A character of a text is a number: so many steps as it stands behind ZERO, or before it, in single
// precision as in PyTorch.

import { attention, dot } from "./attention.js"

const ZERO = 79
const EPSILON = 1e-5 // of a norm, as in PyTorch

const add = (x, y) => x.map((row, i) => row.map((each, k) => each + y[i][k]))
const zeros = (x) => x.map((row) => row.map(() => 0))

// The error function, by its series of positive terms: as precise as the numbers are.
function erf(z) {
  if (Math.abs(z) > 6) return Math.sign(z)
  let [term, sum] = [z, z]
  for (let n = 1; Math.abs(term) > 1e-17; n++) sum += term *= (2 * z * z) / (2 * n + 1)
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-z * z) * sum
}
const gelu = (z) => (z / 2) * (1 + erf(z / Math.SQRT2))

export function singer({ words, heads, length, parameters }) {
  const table = Object.fromEntries(
    Object.entries(parameters).map(([name, [step, ...rows]]) => [
      name,
      rows.map((row) => Array.from(row, (character) => Math.fround(step * (character.charCodeAt(0) - ZERO)))),
    ]),
  )
  const blocks = Object.keys(table).filter((name) => /^qkv/.test(name)).map((_, block) => block)
  const size = table["word.weight"][0].length / heads

  function linear(name, x) {
    const [matrix, bias] = [table[`${name}.weight`], table[`${name}.bias`]]
    return x.map((row) => matrix.map((each, k) => dot(each, row) + (bias ? bias[0][k] : 0)))
  }

  function norm(index, x) {
    const [[scale], [shift]] = [table[`norm.${index}.weight`], table[`norm.${index}.bias`]]
    return x.map((row) => {
      const mean = row.reduce((a, b) => a + b) / row.length
      const variance = row.reduce((sum, each) => sum + (each - mean) ** 2, 0) / row.length
      return row.map((each, k) => ((each - mean) / Math.sqrt(variance + EPSILON)) * scale[k] + shift[k])
    })
  }

  // A text on its way through the model: a row for each word in all that is found. A part may be taken away ("attention",
  // "MLP", "residual", "norms" or "positions"), heads silenced (a list such as ["1 0"], block and head), the mask hidden.
  function read(text, { without = "", silent = [], causal = true } = {}) {
    const normed = (index, x) => (without === "norms" ? x : norm(index, x))
    const onto = (x, more) => (without === "residual" ? more : add(x, more))
    const given = text.map((word) => table["word.weight"][words.indexOf(word)])
    const placed = table["place.weight"].slice(0, text.length)
    const place = without === "positions" ? zeros(placed) : placed
    let x = add(given, place)
    const sum = x
    const found = blocks.map((block) => {
      const before = x
      const seen = normed(2 * block, x)
      const projected = linear(`qkv.${block}`, seen)
      const ears = Array.from({ length: heads }, (_, head) => {
        const part = (which) => projected.map((row) => row.slice((which * heads + head) * size, (which * heads + head + 1) * size))
        const [queries, keys, values] = [0, 1, 2].map(part)
        const { scores, weights, context } = attention(queries, keys, values, { causal })
        return { queries, keys, values, scores, weights, context: silent.includes(`${block} ${head}`) ? zeros(context) : context }
      })
      const merged = text.map((_, at) => ears.flatMap(({ context }) => context[at]))
      const attended = without === "attention" ? zeros(x) : linear(`out.${block}`, merged)
      const between = onto(x, attended)
      const wide = linear(`mlp.${block}.0`, normed(2 * block + 1, between)).map((row) => row.map(gelu))
      const more = without === "MLP" ? zeros(x) : linear(`mlp.${block}.2`, wide)
      x = onto(between, more)
      return { before, normed: seen, heads: ears, attended, between, more, after: x }
    })
    const scoresOf = (x) => linear("read", normed(2 * blocks.length, x))
    return { word: given, place, sum, blocks: found, scores: scoresOf(x), scoresOf }
  }

  // What the singer sees of a text: of one that is too long what follows a whole verse, or the last words.
  function seen(text) {
    const ends = text.flatMap((word, at) => (word === "be" ? [at + 4] : []))
    const end = ends.find((at) => at < text.length && text.length - at <= length)
    return text.length <= length ? text : text.slice(end ?? -length)
  }

  return { words, heads, blocks, read, seen }
}
