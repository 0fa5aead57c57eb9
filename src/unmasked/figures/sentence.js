// A sentence whose words can be asked what they take from one another: bars are the weights, arcs lead to the others.
// The page gives its sentences with the weights of its run: {"sentences": [{"words", "weights", "start"}], "compact"};
// "start" is the word that is chosen first. For a sentence that is typed, the vectors are loaded.

import { attention } from "./attention.js"
import { figures, html, onWidth, percent, roving, svg } from "./figure.js"

const MOST = 20 // words
const VECTORS = new URL("../assets/glove.6B.50d.u8", import.meta.url)

let loading
const vectors = () => (loading ??= load().catch((error) => ((loading = undefined), Promise.reject(error))))

async function load() {
  const answer = await fetch(VECTORS)
  if (!answer.ok) throw new Error(`${VECTORS}: ${answer.status}`)
  const bytes = new Uint8Array(await answer.arrayBuffer())
  const end = bytes.indexOf(10)
  const { words, low, step } = JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)))
  const rows = bytes.subarray(end + 1)
  const places = new Map(words.split(" ").map((word, place) => [word, place]))
  const vector = (word) => low.map((least, k) => least + step[k] * rows[places.get(word) * low.length + k])
  return { places, vector }
}

// The weights of words among those that are known; the rows and columns of the others are empty.
function weigh(words, { places, vector }) {
  const known = words.flatMap((word, place) => (places.has(word.toLowerCase()) ? [place] : []))
  const x = known.map((place) => vector(words[place].toLowerCase()))
  const found = known.length ? attention(x, x, x).weights : []
  const at = (place) => known.indexOf(place)
  return words.map((_, i) => words.map((_, j) => found[at(i)]?.[at(j)]))
}

// The word that has most to tell: of all words, the one that takes most from another.
function telling({ words, weights, start }) {
  const taken = weights.map((row, i) => Math.max(...row.map((weight, j) => (words[i] === words[j] ? 0 : weight ?? 0))))
  return start ?? taken.indexOf(Math.max(...taken))
}

const listed = (words) => new Intl.ListFormat("en").format(words.map((word) => `“${word}”`))

function draw(figure, { sentences, compact }) {
  const arcs = svg("svg", { class: "live-arcs", "aria-hidden": "true" })
  const row = html("div", { class: "live-words", role: "group", "aria-label": "Words: the arrow keys go on" })
  const stage = html("div", { class: `live-stage${compact ? " live-compact" : ""}` }, arcs, row)
  const told = html("p", { class: "live-told" })
  const said = html("p", { class: "live-said", role: "status" })
  const input = html("input", { type: "text", maxlength: 160, autocomplete: "off", spellcheck: "false", input: typed })
  const choices = sentences.map((sentence) =>
    html("button", { type: "button", click: () => ((input.value = ""), (said.textContent = ""), choose(sentence)) }, sentence.words.join(" ")),
  )
  figure.append(
    html("div", { class: "live-choices", role: "group", "aria-label": "Sentences" }, ...choices),
    html("label", { class: "live-field" }, html("span", {}, "Or type a sentence, and point at its words"), input),
    stage,
    told,
    said,
  )

  let sentence, buttons, pinned, shown

  function choose(chosen) {
    sentence = chosen
    choices.forEach((each, k) => each.setAttribute("aria-pressed", sentences[k] === chosen))
    buttons = chosen.words.map((word, place) =>
      html(
        "button",
        {
          type: "button",
          class: chosen.weights[place][place] === undefined ? "live-unknown" : undefined,
          focus: () => pin(place),
          click: () => pin(place),
          pointerenter: ({ pointerType }) => pointerType === "mouse" && show(place),
        },
        html("span", { class: "live-share" }),
        html("span", { class: "live-bar" }),
        html("span", { class: "live-word" }, word),
      ),
    )
    row.replaceChildren(...buttons)
    row.style.setProperty("--words", buttons.length)
    const reach = roving(buttons)
    layout()
    if (buttons.length) reach(telling(chosen)), pin(telling(chosen))
    else told.textContent = ""
  }

  function pin(place) {
    pinned = place
    show(place)
  }

  function show(place) {
    shown = place
    const { words, weights } = sentence
    const taken = weights[place]
    const others = words.flatMap((word, j) => (word === words[place] || taken[j] === undefined ? [] : [j]))
    const most = others.length ? others.reduce((a, b) => (taken[b] > taken[a] ? b : a)) : -1
    buttons.forEach((button, j) => {
      button.firstChild.textContent = taken[j] === undefined ? "" : percent(taken[j])
      button.style.setProperty("--share", taken[j] ?? 0)
      button.setAttribute("aria-pressed", j === place)
      button.classList.toggle("live-most", words[j] === words[most])
    })
    bend(place, most)
    told.replaceChildren(...sentences_of(words[place], taken[place], words[most], taken[most]))
  }

  function sentences_of(word, own, other, most) {
    if (own === undefined) return [html("b", {}, word), " has no vector here, so it takes nothing."]
    const keeps = [html("b", {}, word), ` keeps ${percent(own)} of itself.`]
    return other ? [...keeps, " Of the other words it takes most from ", html("b", {}, other), `: ${percent(most)}.`] : keeps
  }

  // Arcs from a word to the others: below a sentence that fits a line, beside one whose words stand in a column.
  function bend(place, most) {
    const upright = stage.classList.contains("live-upright")
    const { left, top, width, height } = arcs.getBoundingClientRect()
    const room = upright ? width : height
    arcs.setAttribute("viewBox", `0 0 ${width} ${height}`)
    const middles = buttons.map((button) => {
      const box = button.lastChild.getBoundingClientRect()
      return upright ? box.top + box.height / 2 - top : box.left + box.width / 2 - left
    })
    const longest = Math.max(...middles) - Math.min(...middles)
    arcs.replaceChildren(
      ...middles.flatMap((middle, j) => {
        const weight = sentence.weights[place][j]
        if (j === place || weight === undefined) return []
        const depth = room * (0.25 + (0.7 * Math.abs(middle - middles[place])) / longest) * 1.3
        const [from, to] = [middles[place], middle]
        const d = upright
          ? `M${width} ${from}C${width - depth} ${from} ${width - depth} ${to} ${width} ${to}`
          : `M${from} 0C${from} ${depth} ${to} ${depth} ${to} 0`
        const name = sentence.words[j] === sentence.words[most] ? "live-most" : ""
        return svg("path", { d, class: name, "stroke-width": 1 + 30 * weight })
      }),
    )
  }

  function layout() {
    stage.classList.remove("live-upright")
    stage.classList.toggle("live-upright", row.scrollWidth > stage.clientWidth)
    if (shown !== undefined && buttons[shown]) bend(shown, buttons.findIndex((each) => each.matches(".live-most")))
  }

  async function typed() {
    const text = input.value
    const words = text.match(/[\p{L}\p{N}]+(?:['’-][\p{L}\p{N}]+)*/gu) ?? []
    if (!words.length) return (said.textContent = "")
    if (!loading) said.textContent = "The words are on their way …"
    let table
    try {
      table = await vectors()
    } catch {
      return (said.textContent = "The words could not be loaded. The sentences above work without them.")
    }
    if (input.value !== text) return // what has been typed since is drawn in its turn
    const drawn = words.slice(0, MOST)
    const unknown = [...new Set(drawn.filter((word) => !table.places.has(word.toLowerCase())))]
    const count = table.places.size.toLocaleString("en")
    said.textContent =
      (unknown.length ? `${listed(unknown)} ${unknown.length > 1 ? "are" : "is"} not among the ${count} words that this figure knows, and ${unknown.length > 1 ? "stay" : "stays"} out. ` : "") +
      (drawn.length < words.length ? `The first ${MOST} words are drawn.` : "")
    choose({ words: drawn, weights: weigh(drawn, table) })
  }

  row.addEventListener("pointerleave", () => show(pinned))
  onWidth(stage, layout)
  choose(sentences[0])
}

figures("sentence", draw)
