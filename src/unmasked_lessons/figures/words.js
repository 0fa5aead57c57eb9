// The words that a live figure knows: their vectors, which the site serves; how a typed text is read; what is near to what.

import { attention, dot } from "./attention.js"

const VECTORS = new URL("../assets/glove.6B.50d.u8", import.meta.url)
// What is short for two words is read as both. What ends otherwise in 's is read without it: "the cat's tail".
const SHORT = new Map([["can't", "can not"], ["won't", "will not"], ["shan't", "shall not"], ["let's", "let us"]])
const ENDS = [["n't", " not"], ["'re", " are"], ["'ve", " have"], ["'ll", " will"], ["'d", " would"], ["'m", " am"]]
const IS = /^(it|he|she|that|what|who|where|when|why|how|there|here)'s$/

let loading
export const vectors = () => (loading ??= load().catch((error) => ((loading = undefined), Promise.reject(error))))

async function load() {
  const answer = await fetch(VECTORS)
  if (!answer.ok) throw new Error(`${VECTORS}: ${answer.status}`)
  const bytes = new Uint8Array(await answer.arrayBuffer())
  const end = bytes.indexOf(10)
  const { words, low, step } = JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)))
  const numbers = bytes.subarray(end + 1)
  const names = words.split(" ")
  const rows = names.map((_, place) => low.map((least, k) => least + step[k] * numbers[place * low.length + k]))
  return { names, rows, places: new Map(names.map((name, place) => [name, place])) }
}

// The words of a text, and those that were read otherwise than they were typed.
export function read(text, { places }) {
  const changed = new Map()
  const words = (text.match(/[\p{L}\p{N}]+(?:['’]\p{L}+)*/gu) ?? []).flatMap((typed) => {
    const word = typed.toLowerCase().replaceAll("’", "'")
    const [end, spoken] = ENDS.find(([each]) => word.endsWith(each)) ?? []
    const longer = end ? word.slice(0, -end.length) + spoken : word.replace(IS, "$1 is").replace(/'s$/, "")
    const whole = SHORT.get(word) ?? longer
    if (places.has(word) || whole === word) return [typed]
    changed.set(typed, whole)
    return whole.split(" ")
  })
  return { words, changed }
}

// A sentence with its weights, whether each word is among the most common ones, and the words nearest to each: to what it
// is looked up as, and to what attention makes of it. What is not known has nothing of all this.
export function compute(words, { names, rows, places }, { common, nearest }) {
  const place = (word) => places.get(word.toLowerCase())
  const known = words.flatMap((word, at) => (place(word) === undefined ? [] : [at]))
  const x = known.map((at) => rows[place(words[at])])
  const found = known.length ? attention(x, x, x) : {}
  const weight = (i, j) => found.weights?.[known.indexOf(i)]?.[known.indexOf(j)]
  const close = (vector, own) =>
    rows
      .map((row, k) => [k < common || k === own ? -Infinity : dot(row, vector) / Math.sqrt(dot(row, row)), names[k]])
      .sort(([a], [b]) => b - a)
      .slice(0, nearest)
      .map(([, name]) => name)
  return {
    words,
    weights: words.map((_, i) => words.map((_, j) => weight(i, j))),
    common: words.map((word) => place(word) < common),
    near: (at) => [x, found.context].map((each) => close(each[known.indexOf(at)], place(words[at]))),
  }
}
