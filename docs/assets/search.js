/* The search: a worker that speaks to the theme's page as the theme's own does, whose place it takes. It has no
   operators: ~mask, -inf, a*b and x:y are looked for. A page is found by what it says (title, address, headings, errors
   that its cells raise, first sentence, text), and by what others say where they link to it. Each word counts by how
   rare it is. Two words that stand together are a word, too: fastpath finds "fast path". A name that stands on one or
   two pages decides: no page without it is above one that has it. What people say and no page does is in search.toml.
   The index is more than all else that a visit loads: it comes with the first query. */

const [READY, QUERY, RESULT] = [1, 2, 3] // the theme's messages

const IDLE = new Set(
  ("a an and are as at be but by can could did do does for from get gets give gives go goes going got has have how i " +
    "if in instead into is it its just me much my no not of on or please s should so some such t than that the then " +
    "there this to too use used using very vs was what when where which who why will with you your").split(" "))

const WORD = /[\p{L}\p{N}_]+/gu
const JOINT = /_+|(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=\p{L})(?=\d)|(?<=\d)(?=\p{L})/u
const PART = 0.25 // how surely a part of a name is meant by it: it is not marked
const SIGNS = new Map([["amp", "&"], ["lt", "<"], ["gt", ">"], ["quot", '"']])

const bare = (html) => html.replace(/<\/?(?:code|su[bp])>/g, "").replace(/<[^>]+>/g, " ")
const plain = (html) => bare(html).replace(/&(\w+);/g, (all, name) => SIGNS.get(name) ?? all)
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")
const sum = (numbers) => numbers.reduce((all, each) => all + each, 0)
const add = (counts, word, count) => counts.set(word, (counts.get(word) ?? 0) + count)

// What masks, masked and masking have in common. Names stay as they are.
function stem(word) {
  if (/[_\d]/.test(word) || word.length < 4) return word
  let cut = word.replace(/ies$/, "y").replace(/([^suai])s$/, "$1")
  if (cut.length > 5) cut = cut.replace(/(ing|ed)$/, "")
  if (cut !== word) cut = cut.replace(/([bdfgmnprt])\1$/, "$1")
  return cut.length > 3 ? cut.replace(/e$/, "") : cut
}

// A name, and its parts: in_proj_weight is found by weight, and MultiheadAttention by attention.
const met = new Map()
function stems(word) {
  if (met.has(word)) return met.get(word)
  const parts = word.split(JOINT).filter(Boolean)
  const all = [word.replace(/^_+|_+$/g, ""), ...(parts.length > 1 ? parts : [])].map((each) => stem(each.toLowerCase()))
  met.set(word, all)
  return all
}

function tally(text) {
  const counts = new Map()
  for (const [word] of text.matchAll(WORD)) stems(word).forEach((each, part) => add(counts, each, part ? 0.5 : 1))
  return counts
}

// The same, and each two words that stand together, and parts of a name, as one.
function tallyWithPairs(text) {
  const counts = tally(text), words = (text.match(WORD) ?? []).flatMap((word) => word.split(JOINT))
  const telling = words.map((word) => word.toLowerCase()).filter((word) => word && !IDLE.has(word))
  telling.slice(1).forEach((word, place) => add(counts, stem(telling[place] + word), 1))
  return counts
}

function read({ docs, same }) {
  const pages = new Map(), sections = [], on = { sections: new Map(), pages: new Map() }
  const titles = new Map()
  for (const doc of docs) {
    const [title, text] = [doc.title, doc.text].map((html) => tallyWithPairs(plain(html)))
    const [errors, told] = [doc.errors, doc.told].map((texts) => tallyWithPairs((texts ?? []).join(" ")))
    const answers = /#(references|what-to-read-next)$/.test(doc.location) ? 0.4 : 1 // a list of works says little
    const section = { doc, title, text, errors, told, answers, size: sum([...text.values()]) }
    const [address] = doc.location.split("#")
    if (!pages.has(address)) pages.set(address, { doc, sections: [], weights: new Map() })
    pages.get(address).sections.push(section)
    sections.push(section)
    for (const [word] of plain(doc.title).matchAll(WORD)) add(titles, word, 1)
    for (const word of new Set([title, text, errors].flatMap((counts) => [...counts.keys()]))) add(on.sections, word, 1)
    for (const word of told.keys()) if (!on.sections.has(word)) on.sections.set(word, 1)
  }
  const mean = sum(sections.map(({ size }) => size)) / sections.length
  const short = (size, usual) => 1 / (0.4 + (0.6 * size) / usual) // a word of a long text says less
  for (const section of sections) section.short = short(section.size, mean)
  for (const page of pages.values()) {
    const weigh = (counts, weight) => counts.forEach((count, word) => add(page.weights, word, weight * count))
    const first = page.sections.find(({ doc }) => doc.text)?.doc.text ?? ""
    weigh(tallyWithPairs(plain(page.doc.title)), 16)
    weigh(tallyWithPairs(page.doc.location), 10)
    weigh(tallyWithPairs(plain(/<p>(.*?)<\/p>/s.exec(first)?.[1] ?? "")), 2.5)
    const size = sum(page.sections.map((section) => section.size))
    for (const section of page.sections) {
      if (section.doc !== page.doc) weigh(section.title, 3)
      weigh(section.errors, 3)
      weigh(section.told, 1)
      weigh(section.text, short(size, (mean * sections.length) / pages.size))
    }
    const names = (page.doc.tags ?? []).map((name) => [...tally(name).keys()].filter((word) => !IDLE.has(word)))
    page.names = names.filter((name) => name.length)
    for (const word of page.names.flat()) {
      add(page.weights, word, 0)
      if (!on.sections.has(word)) on.sections.set(word, 1)
    }
    for (const word of page.weights.keys()) add(on.pages, word, 1)
  }
  const words = new Set([...met.values()].map(([whole]) => whole))
  return { pages: [...pages.values()], count: sections.length, on, words, titles, same: new Map(Object.entries(same)) }
}

// Whether one letter is wrong, missing, too many, or two have changed places.
function near(typed, word) {
  if (typed.length < 4 || typed[0] !== word[0]) return false
  let at = 1
  while (at < typed.length && typed[at] === word[at]) at++
  const same = (skipped, left) => typed.slice(at + skipped) === word.slice(at + left)
  const swapped = typed[at] === word[at + 1] && typed[at + 1] === word[at]
  return same(1, 1) || same(1, 0) || same(0, 1) || (swapped && same(2, 2))
}

// Each word of a query, with the words of pages that it may mean, and how surely.
function meant(query, { on, words: all, same }) {
  const typed = [...new Set(query.match(WORD) ?? [])], telling = typed.filter((word) => !IDLE.has(word.toLowerCase()))
  const words = telling.length ? telling.filter((word, _, all) => all.length === 1 || !/^\d+$/.test(word)) : typed
  return words.flatMap((word, place) => {
    const [whole, ...parts] = stems(word), low = word.toLowerCase(), means = new Map()
    const mean = (each, sure) => on.sections.has(each) && !(means.get(each) >= sure) && means.set(each, sure)
    mean(whole, 1)
    if (same.has(low)) mean(stem(same.get(low).toLowerCase()), 0.9)
    const known = means.size
    for (const each of low.length > 2 && (place === words.length - 1 || !known) ? all : [])
      if (each.startsWith(low)) mean(each, known ? 0.3 : 0.6) // it is still being typed
    if (!means.size && !parts.length) for (const each of all) if (near(whole, each)) mean(each, 0.6)
    if (known) for (const part of parts) if (!IDLE.has(part)) mean(part, PART)
    if (means.size || !parts.length) return { word, means }
    return parts.filter((part) => !IDLE.has(part) && !/^\d+$/.test(part)).map((part) => {
      return { word: part, means: new Map(on.sections.has(part) ? [[part, 0.8]] : []) }
    })
  })
}

// A row of a table is a piece of a text, and so is a line of code.
function cut(html) {
  return html.split(/<\/?(?:p|ul|ol|li)>|\uE011|(?=<pre>)|(?<=<\/pre>)/).flatMap((piece) => {
    const text = plain(piece).replace(/\uE010/g, " · ")
    if (/^<pre>/.test(piece)) return text.split("\n").map((line) => [line.trim(), "code"])
    return [[text.replace(/\s+/g, " ").replace(/ · $|^ · /g, "").trim(), "text"]]
  })
}

// The two pieces of a text that have most of what was asked.
function teaser(pieces, value) {
  const found = pieces.map(([text, kind], place) => {
    const words = [...text.matchAll(WORD)].map((match) => [match, value(match[0])]).filter(([, worth]) => worth)
    const worth = sum([...new Map(words.map(([[word], worth]) => [word.toLowerCase(), worth])).values()])
    return { text, kind, place, words, worth: kind === "text" ? worth : worth / 2 }
  }).filter(({ words }) => words.length).sort((a, b) => b.worth - a.worth).slice(0, 2).sort((a, b) => a.place - b.place)
  return found.map(({ text, kind, words }) => {
    const start = text.length > 240 ? text.lastIndexOf(" ", Math.max(0, words[0][0].index - 60)) + 1 : 0
    let marked = start ? "… " : "", last = start
    const end = start + 240 < text.length ? text.lastIndexOf(" ", start + 240) : text.length
    for (const [match] of words) {
      if (match.index + match[0].length > end) break
      marked += `${escaped(text.slice(last, match.index))}<mark>${match[0]}</mark>`
      last = match.index + match[0].length
    }
    marked += escaped(text.slice(last, end)) + (end < text.length ? " …" : "")
    return kind === "text" ? `<p>${marked}</p>` : `<p><code>${marked}</code></p>`
  }).join("")
}

function ask(query, index) {
  const { pages: all, on, titles, count } = index
  const terms = meant(query, index), known = terms.filter(({ means }) => means.size)
  const rarity = (word) => Math.log(1 + count / on.sections.get(word))
  const worth = (means, counts, half) => Math.max(0, ...[...means].map(([word, sure]) => {
    const has = counts(word)
    return (sure * rarity(word) * has) / (has + half)
  }))
  const rare = known.flatMap(({ means }) => [...means].filter(([word, sure]) =>
    sure > 0.6 && on.pages.get(word) <= 2 && /_|\p{L}{2}\d/u.test(word)).map(([word]) => word))
  const sure = new Map()
  for (const [word, each] of known.flatMap(({ means }) => [...means]))
    sure.set(word, Math.max(each, sure.get(word) ?? 0))
  const values = new Map()
  const asked = (word) => (sure.get(word) > PART ? sure.get(word) * rarity(word) : 0)
  const value = (word) => {
    if (!values.has(word)) values.set(word, Math.max(...stems(word).map(asked)))
    return values.get(word)
  }
  const results = all.map((page) => {
    const total = (counts, half) => sum(known.map(({ means }) => worth(means, counts, half)))
    const items = page.sections.map((section) => {
      const above = (word) => (section.title.get(word) ?? 0) + (section.errors.get(word) ?? 0)
      const text = (word) => section.short * (section.text.get(word) ?? 0)
      const has = (word) => 3 * above(word) + text(word) + (section.told.get(word) ?? 0)
      const found = terms.map(({ word, means }) => [word, worth(means, has, 3) > 0])
      return { section, score: section.answers * total(has, 3), terms: Object.fromEntries(found) }
    }).sort((a, b) => b.score - a.score)
    const named = page.names.map((name) => {
      return sum(name.map((word) => rarity(word) * (sure.get(word) ?? 0))) ** 2 / sum(name.map(rarity))
    })
    const score = total((word) => page.weights.get(word) ?? 0, 8) + 0.6 * items[0].score + Math.max(0, ...named)
    const decides = rare.some((word) => page.weights.has(word))
    return { page, items, decides, score: /^reference\//.test(page.doc.location) ? 0.7 * score : score }
  }).filter(({ score }) => score).sort((a, b) => b.decides - a.decides || b.score - a.score)
  // How the word that is being typed may end: as most titles have it.
  const typing = /[\p{L}\p{N}_]+$/u.exec(query)?.[0]
  const ends = [...titles].filter(([word]) => typing && word.startsWith(typing)).sort(([, a], [, b]) => a - b)
  // What has little of what the best has is left out.
  const best = Math.max(...results.map(({ score }) => score))
  const items = results.filter(({ score, decides }) => decides || score > best / 4).map(({ page, items }, place) => {
    // Enter opens what has the highest score of all: the first page's first.
    const rank = (score) => (1 + score / (items[0].score || 1)) / 2 ** place
    const shown = items.filter(({ section, score }) => score > items[0].score / 4 || section.doc === page.doc)
    return shown.map(({ section, score, terms }) => {
      const { location, title, text } = section.doc
      return { location, title, score: rank(score), terms, text: score ? teaser((section.pieces ??= cut(text)), value) : "" }
    })
  })
  return { items, suggest: ends.map(([word]) => word) }
}

let index
async function load() {
  return read(await (await fetch(new URL("../search/search_index.json", location))).json())
}

addEventListener("message", async ({ data: { type, data } }) => {
  if (type !== QUERY) return
  if (!data.match(WORD)) return postMessage({ type: RESULT, data: { items: [] } })
  try {
    await (index ??= load())
  } catch {
    return (index = undefined) // the page tells that the index did not come
  }
  postMessage({ type: RESULT, data: ask(data, await index) })
})
postMessage({ type: READY })
