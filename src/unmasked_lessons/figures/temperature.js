// What the temperature does to the next word: its scores are divided by it, and a softmax makes chances of them, of all or
// of the likeliest few.
// The page gives {"words": those that the model knows, "texts": [{"text", "scores": of each word as the next one}]}.

import { softmax } from "./attention.js"
import { figures, fixed, html, percent } from "./figure.js"

const SHOWN = 6 // words with a bar of their own
const DRAWN = 10

function draw(figure, { words, texts }) {
  const bars = Array.from({ length: SHOWN + 1 }, () => [html("span", { class: "live-word" }), html("span", { class: "live-bar" }), html("span", { class: "live-share" })])
  const chart = html("div", { class: "live-bars", role: "img" }, ...bars.flat())
  const choices = texts.map((each) => html("button", { type: "button", click: () => choose(each) }, each.text))
  const range = html("input", { type: "range", min: -3, max: 3, step: 0.25, value: 0, "aria-label": "Temperature", input: show })
  const few = html("input", { type: "range", min: 1, max: words.length, value: words.length, "aria-label": "Likeliest words", input: show })
  const [size, count] = [html("output"), html("output")]
  const told = html("p", { class: "live-told", role: "status" })
  figure.append(
    html("div", { class: "live-choices", role: "group", "aria-label": "Text so far" }, ...choices),
    html("div", { class: "live-slide" }, html("label", {}, size), range, html("button", { type: "button", click: take }, `Draw ${DRAWN} words`)),
    html("div", { class: "live-slide" }, html("label", {}, count), few),
    chart,
    told,
  )
  let ranked, chances

  function choose({ scores }) {
    choices.forEach((each, k) => each.setAttribute("aria-pressed", texts[k].scores === scores))
    ranked = words.map((word, k) => ({ word, score: scores[k] })).sort((a, b) => b.score - a.score)
    show()
  }

  function show() {
    const temperature = 2 ** range.value
    const kept = +few.value
    chances = softmax(ranked.map(({ score }, k) => (k < kept ? score / temperature : -Infinity)))
    const rest = chances.slice(SHOWN).reduce((a, b) => a + b)
    const rows = [...ranked.slice(0, SHOWN).map(({ word }, k) => [word, chances[k]]), [`${words.length - SHOWN} others`, rest]]
    rows.forEach(([word, chance], k) => {
      const [name, bar, share] = bars[k]
      name.textContent = word
      bar.style.setProperty("--share", chance)
      share.textContent = percent(chance)
    })
    size.textContent = `Temperature ${fixed(temperature)}`
    range.setAttribute("aria-valuetext", fixed(temperature))
    count.textContent = kept < words.length ? `Top ${kept}` : "All words"
    few.setAttribute("aria-valuetext", count.textContent)
    chart.setAttribute("aria-label", `The next word: ${rows.map(([word, chance]) => `${word} ${percent(chance)}`).join(", ")}`)
    told.textContent = ""
  }

  // A number from 0 to 1 falls into one of the words' shares, which lie side by side.
  function one() {
    let left = Math.random()
    const place = chances.findIndex((chance) => (left -= chance) < 0)
    return ranked.at(place).word
  }

  function take() {
    told.textContent = `Drawn: ${Array.from({ length: DRAWN }, one).join(", ")}.`
  }

  choose(texts[0])
}

figures("temperature", draw)
