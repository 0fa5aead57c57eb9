// One word on its way through the singer, part by part, until it becomes the next word. All numbers are the singer's own:
// `singer.js` computes them from the parameters of the page. Parts that a later page explains are grey.
// The page gives {"singer": for `singer.js`, "text": words, "follow": the index of one, "here": the page, "sings": whether
// the reader may change the song}.

import { softmax } from "./attention.js"
import { figures, fixed, html, percent, roving, svg } from "./figure.js"
import { singer } from "./singer.js"

const PAGES = {
  attention: "What is attention?",
  queries_keys_values: "What do queries, keys and values learn?",
  masks: "Who may see whom?",
  positions: "Does order matter?",
  heads: "Why several heads?",
  block: "A whole transformer block",
  generating: "Writing one word at a time",
}
const ORDER = Object.keys(PAGES)
const BARS = 6 // words whose chances are shown
const FIRST = 3 // numbers of a vector that are written

const largest = (row) => row.indexOf(Math.max(...row))

// The numbers of a vector as cells: teal above zero and amber below it, the stronger the larger.
function vector(name, numbers) {
  const top = Math.max(...numbers.map(Math.abs)) || 1
  const cells = numbers.map((each, x) => svg("rect", { x, width: 1, height: 1, class: each < 0 ? "live-below" : "", "fill-opacity": Math.abs(each) / top }))
  const first = `${numbers.slice(0, FIRST).map((each) => fixed(each)).join(", ")}, …`
  const label = `${name}: ${numbers.length} numbers, ${first}`
  return html("div", { class: "live-vector" },
    html("span", {}, name),
    svg("svg", { viewBox: `0 0 ${numbers.length} 1`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...cells),
    html("span", { class: "live-said", "aria-hidden": "true" }, first))
}

async function draw(figure, { singer: given, text, follow, here, sings }) {
  const model = singer(given)
  const known = (page) => ORDER.indexOf(page) <= ORDER.indexOf(here)
  const heard = Array.from({ length: known("heads") ? model.heads : 1 }, (_, head) => head)
  let [found, seen, options, temperature, chosen] = [, , {}, 1, follow]
  let chances

  const parts = []
  const chips = html("div", { class: "live-choices", role: "group", "aria-label": "Word to follow" })
  const told = html("p", { class: "live-told", role: "status" })

  // A part of the way: what it is called, the page that explains it and those that show it, too; what stands beside its
  // name, and what it shows.
  function part(title, pages, said, ...body) {
    const [beside, inside] = [html("span", { class: "live-said" }), html("div")]
    const later = !known(pages[0])
    const link = html("a", { href: new URL(`../learn/${pages[0]}/`, import.meta.url) }, PAGES[pages[0]])
    parts.push(() => {
      beside.textContent = said()
      inside.replaceChildren(...body.flatMap((each) => each()), ...(later ? [html("p", {}, "This is explained in ", link, ".")] : []))
    })
    return html("details", { class: `live-part ${later ? "live-later" : ""}`, open: pages.includes(here) }, html("summary", {}, html("b", {}, title), " ", beside), inside)
  }

  // What the singer would go on with, if the way ended here.
  const likeliest = (row) => `→ ${model.words[largest(row)]} ${percent(Math.max(...row))}`
  const reads = (x) => likeliest(softmax(found.scoresOf([x[chosen]])[0]))

  const own = () => seen[chosen]
  const vectors = (...pairs) => pairs.map(([name, of]) => () => [vector(name(), of()[chosen])])
  const named = (name) => () => name

  function block(index) {
    const at = () => found.blocks[index]
    const most = (head) => largest(at().heads[head].weights[chosen])
    const ear = (head, many, one) => (heard.length > 1 ? many.replace("#", head) : one) // one is heard where heads are unknown
    const lost = (head) => options.without === "attention" || options.silent?.includes(`${index} ${head}`)
    const weighs = (head) => `${ear(head, "head #: ", "")}${seen[most(head)]} ${percent(at().heads[head].weights[chosen][most(head)])}${lost(head) ? ", not added" : ""}`
    const asks = (head) => () => {
      const { queries, keys, values, scores } = at().heads[head]
      const other = most(head)
      return [
        vector(`query of ${own()}`, queries[chosen]), vector(`key of ${seen[other]}`, keys[other]), vector(`value of ${seen[other]}`, values[other]),
        html("p", {}, `${ear(head, "Head #: the", "The")} dot product of this query and this key, divided by √${queries[0].length}, is the score ${fixed(scores[chosen][other])}.`),
      ]
    }
    const last = index === model.blocks.length - 1
    const open = last || known("block")
    const inner = [
      part("Norm", ["block"], named(""), ...vectors([named("before"), () => at().before], [named("after"), () => at().normed])),
      part("Queries, keys, values", ["queries_keys_values"], named(""), ...heard.map(asks)),
      part("Scores and weights", ["attention", "masks", "heads", last && "generating"], () => heard.map(weighs).join(", "), () => [weights(at().heads)]),
      part("Average of the values", ["attention", "heads"], named(""), ...vectors(...heard.map((head) => [named(ear(head, "head #", "average")), () => at().heads[head].context]))),
      part("Attention is added", ["block"], () => reads(at().between), ...vectors([named("attention"), () => at().attended], [named("sum"), () => at().between])),
      part("The MLP is added", ["block"], () => reads(at().after), ...vectors([named("MLP"), () => at().more], [named("sum"), () => at().after])),
    ]
    const title = html("summary", {}, html("b", {}, model.blocks.length > 1 ? `Block ${index + 1} of ${model.blocks.length}` : "The block"))
    return html("details", { class: `live-part live-block ${known("block") ? "" : "live-later"}`, open }, title, ...inner)
  }

  // A row for each word: what the word that is followed makes of it in each head.
  function weights(heads) {
    const hidden = (key) => options.causal !== false && key > chosen
    const cells = ({ scores, weights }, key) =>
      hidden(key) ? [html("td", { class: "live-hidden" }, "−∞"), html("td", { class: "live-hidden" }, "0%")]
        : [html("td", {}, fixed(scores[chosen][key], 1)), html("td", { "--share": weights[chosen][key] }, percent(weights[chosen][key]))]
    return html("table", { class: "live-grid" },
      html("caption", {}, `What ${own()} sees${hidden(seen.length - 1) ? "; the mask hides the words after it" : ""}`),
      html("thead", {}, html("tr", {}, html("td"), ...heard.flatMap((head) => ["score", "weight"].map((each) => (heard.length > 1 ? `${each} ${head}` : each))).map((name) => html("th", { scope: "col" }, name)))),
      html("tbody", {}, ...seen.map((word, key) =>
        html("tr", { class: key === chosen ? "live-chosen" : "" }, html("th", { scope: "row" }, word), ...heard.flatMap((head) => cells(heads[head], key))))))
  }

  function bars() {
    const ranked = model.words.map((word, k) => [word, chances[k], found.scores[chosen][k]]).sort((a, b) => b[1] - a[1])
    return [html("div", { class: "live-bars" }, ...ranked.slice(0, BARS).flatMap(([word, chance, score]) => [
      html("span", { class: "live-word" }, `${word} `, html("span", { class: "live-said" }, `grade ${fixed(score, 1)}`)),
      html("span", { class: "live-bar", "--share": chance }),
      html("span", { class: "live-share" }, percent(chance)),
    ]))]
  }

  const way = html("div", { class: "live-way" },
    part("The word", ["attention"], () => reads(found.word), ...vectors([own, () => found.word])),
    part("Its place", ["positions"], () => reads(found.sum), ...vectors([named("place"), () => found.place], [named("sum"), () => found.sum])),
    ...model.blocks.map(block),
    part("The next word", ["generating"], () => likeliest(chances), bars),
  )

  function show() {
    seen = model.seen(text)
    chosen = Math.min(chosen, seen.length - 1)
    found = model.read(seen, options)
    chances = softmax(found.scores[chosen].map((score) => score / temperature))
    const skipped = text.length - seen.length
    ;[...chips.children].forEach((each, at) => {
      each.setAttribute("aria-pressed", at - skipped === chosen)
      each.disabled = at < skipped
    })
    for (const fill of parts) fill()
    told.replaceChildren(html("b", {}, own()), " becomes ", html("b", {}, model.words[largest(chances)]), ` (${percent(Math.max(...chances))}).`)
  }

  // Another text, whose last word is followed, or the one at an index.
  function write(words, at) {
    text = words
    chosen = at ?? model.seen(text).length - 1
    const buttons = text.map((word, at) => html("button", { type: "button", click: () => ((chosen = at - text.length + seen.length), show()) }, word))
    chips.replaceChildren(...buttons)
    show()
    roving(buttons)(chosen + text.length - seen.length)
  }

  const all = html("button", { type: "button", click: () => unfold(way.querySelector("details:not([open])") !== null) })
  function unfold(open) {
    for (const each of way.querySelectorAll("details")) each.open = open
  }
  // Tells what the button would do, whoever opens or closes a part.
  const tell = () => (all.textContent = way.querySelector("details:not([open])") ? "open all parts" : "close all parts")
  way.addEventListener("toggle", tell, true)
  tell()

  figure.append(chips, told, all, way)
  write(text, follow)
  if (sings) {
    const { controls } = await import("./sing.js")
    figure.prepend(controls(model, text, (song, changed, heat) => (([options, temperature] = [changed, heat]), write(song))))
  }
}

figures("strip", draw, { seen: true })
