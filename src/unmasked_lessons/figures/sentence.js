// A sentence whose words can be asked what they take from one another: bars are the weights, arcs lead to the others.
// Below stand the words that are nearest to the chosen one, as it is looked up and as attention makes it.
// The page gives its sentences with what its run gave: {"sentences": [{"words", "weights", "start", "near"}], "common",
// "nearest", "compact"}; "start" is the word that is chosen first. What a typed sentence takes is loaded when it is typed.

import { figures, html, onWidth, percent, roving, svg, write } from "./figure.js"

const MOST = 20 // words
const name = (word) => word.toLowerCase()

// The word that has most to tell: of those that are not so common that they are near to all, the one that takes most from
// others of these. One that is unknown tells nothing.
function telling({ words, weights, common = [], start }) {
  const taken = weights.map((row, i) =>
    row[i] === undefined ? -2 : common[i] ? -1 : row.reduce((sum, weight = 0, j) => sum + (common[j] || name(words[i]) === name(words[j]) ? 0 : weight), 0),
  )
  return start ?? taken.indexOf(Math.max(...taken))
}

const listed = (words) => new Intl.ListFormat("en").format(words.map((word) => `“${word}”`))

// One sentence with its bars and arcs, and below it what the chosen word is near to and what it takes.
function stage() {
  const arcs = svg("svg", { class: "live-arcs", "aria-hidden": "true" })
  const row = html("div", { class: "live-words", role: "group", "aria-label": "Words: the arrow keys go on" })
  const drawn = html("div", { class: "live-stage" }, arcs, row)
  const told = html("p", { class: "live-told" })
  const near = ["Nearest words, looked up", "In this sentence"].map((label) => [html("dt", {}, label), html("dd")])
  const list = html("dl", { class: "live-near" }, ...near.map((row) => html("div", {}, ...row)))

  let sentence, buttons, pinned, shown

  function choose(chosen) {
    sentence = chosen
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
    row.style.setProperty("--letters", Math.min(14, Math.max(6, ...chosen.words.map((word) => word.length))))
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
    const others = words.flatMap((word, j) => (name(word) === name(words[place]) || taken[j] === undefined ? [] : [j]))
    const most = others.length ? others.reduce((a, b) => (taken[b] > taken[a] ? b : a)) : -1
    const largest = Math.max(...taken.filter((share) => share !== undefined))
    const isMost = (j) => most >= 0 && name(words[j]) === name(words[most]) // it may stand there more than once
    buttons.forEach((button, j) => {
      write(button.firstChild, taken[j] === undefined ? "" : percent(taken[j]))
      button.style.setProperty("--share", (taken[j] ?? 0) / largest)
      button.setAttribute("aria-pressed", j === place)
      button.classList.toggle("live-most", isMost(j))
    })
    bend(place, most)
    const unknown = taken[place] === undefined
    const takings = unknown ? [" has no vector here, so it takes nothing."] : takes(place, most, taken)
    told.replaceChildren(html("b", {}, words[place]), ...takings)
    const found = Array.isArray(sentence.near) ? sentence.near[place] : unknown ? undefined : sentence.near(place)
    list.hidden = !found
    if (!found) return
    const [before, after] = found
    near[0][1].textContent = before.join(", ")
    near[1][1].replaceChildren(
      ...after.flatMap((word, k) => [k ? ", " : "", before.includes(word) ? word : html("b", {}, word)]),
    )
  }

  // What a word takes, in words. The vectors have never been trained to look at what matters, which some sentences show.
  function takes(place, most, taken) {
    const each = (at) => {
      const times = sentence.words.filter((word) => name(word) === name(sentence.words[at])).length
      return `${percent(taken[at])}${times > 1 ? ` each of ${times} times` : ""}`
    }
    const keeps = ` keeps ${percent(taken[place])} of itself`
    if (most < 0) return [`${keeps}.`]
    const other = html("b", {}, sentence.words[most])
    const [own, share] = [taken[place], each(most)]
    if (own > 0.9 && !sentence.common?.[most]) return [`${keeps} and hardly moves: nobody trained it to look at `, other, ` (${share}).`]
    const ends = sentence.common?.[most] ? ", because nobody trained it to look past common words." : "."
    return [`${keeps}. Of the other words it takes most from `, other, `: ${share}${ends}`]
  }

  // Arcs from a word to the others: below a sentence that fits a line, beside one whose words stand in a column.
  function bend(place, most) {
    const upright = drawn.classList.contains("live-upright")
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
        const isMost = most >= 0 && name(sentence.words[j]) === name(sentence.words[most])
        return svg("path", { d, class: isMost && "live-most", "stroke-width": 1 + 30 * weight })
      }),
    )
  }

  function layout() {
    drawn.classList.remove("live-upright")
    drawn.classList.toggle("live-upright", row.scrollWidth > drawn.clientWidth)
    if (shown !== undefined && buttons[shown]) bend(shown, buttons.findIndex((each) => each.matches(".live-most")))
  }

  row.addEventListener("pointerleave", () => show(pinned))
  onWidth(drawn, layout)
  return { choose, parts: [drawn, list, told] }
}

// The page's sentences: one of them is chosen, or all stand side by side. A typed one takes their place.
function draw(figure, { sentences, together, ...counts }) {
  const stages = (together ? sentences : sentences.slice(0, 1)).map(stage)
  const said = html("p", { class: "live-said", role: "status" })
  const input = html("input", {
    type: "text", maxlength: 160, autocomplete: "off", spellcheck: "false", placeholder: "such as: the dog ate a bone", input: typed,
  })
  const field = html("label", { class: "live-field" }, html("span", {}, "Or type a sentence, and point at its words"), input)
  const choices = together ? [] : sentences.map((sentence) =>
    html("button", { type: "button", click: () => ((input.value = said.textContent = ""), choose((given = sentence))) }, sentence.words.join(" ")),
  )
  const sides = stages.map(({ parts }) => html("div", {}, ...parts))
  if (together) figure.append(html("div", { class: "live-pair" }, ...sides), field, said)
  else figure.append(html("div", { class: "live-choices", role: "group", "aria-label": "Sentences" }, ...choices), field, ...stages[0].parts, said)

  let known
  let sentence, given = sentences[0] // which was chosen last, and of the page's own

  function choose(chosen) {
    sentence = chosen
    choices.forEach((each, k) => each.setAttribute("aria-pressed", sentences[k] === chosen))
    const isOwn = chosen === given
    sides.forEach((side, k) => (side.hidden = k > 0 && !isOwn))
    stages.forEach((each, k) => (k === 0 || isOwn) && each.choose(together && isOwn ? sentences[k] : chosen))
  }

  async function typed() {
    const text = input.value
    if (!/[\p{L}\p{N}]/u.test(text)) {
      said.textContent = text.trim() && `“${text.trim()}” has no word in it. Above is the page’s sentence.`
      return sentence === given || choose(given)
    }
    if (!known) said.textContent = "The words are on their way …"
    let table
    try {
      known ??= await import("./words.js")
      table = await known.vectors()
    } catch {
      return (said.textContent = "The words could not be loaded. The sentences above work without them.")
    }
    if (input.value !== text) return // what has been typed since is drawn in its turn
    const { words, changed } = known.read(text, table)
    const drawn = words.slice(0, MOST)
    const unknown = [...new Set(drawn.filter((word) => !table.places.has(name(word))))]
    const count = table.names.length.toLocaleString("en")
    const remarks = [...changed].map(([typed, whole]) => `“${typed}” is read as “${whole}”.`)
    if (unknown.length) {
      const [are, stay] = unknown.length > 1 ? ["are", "stay"] : ["is", "stays"]
      remarks.push(`${listed(unknown)} ${are} not among the ${count} words that this figure knows, and ${stay} out.`)
    }
    if (drawn.length < words.length) remarks.push(`The first ${MOST} words are drawn.`)
    said.textContent = remarks.join(" ")
    choose(known.compute(drawn, table, counts))
  }

  choose(given)
}

figures("sentence", draw)
