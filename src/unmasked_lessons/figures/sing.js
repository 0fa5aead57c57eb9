// The reader's hand in the song: a beginning, how many words are sung, the temperature, and what is taken away. Whatever is
// changed, the song is sung again from its beginning, with the same luck.

import { softmax } from "./attention.js"
import { fixed, html } from "./figure.js"

const PARTS = ["nothing", "attention", "MLP", "residual", "norms", "positions"]
const VERSE = 18 // words
const MOST = 200 // words of a song

// `change` gets the song, the options of the model, and the temperature.
export function controls(model, start, change) {
  let [beginning, sung, count, without, causal] = [start, [], 0, "", true]
  const silent = new Set()
  const luck = []

  const input = html("input", { type: "text", value: start.join(" "), autocomplete: "off", autocapitalize: "off", spellcheck: "false", input: begin })
  const said = html("p", { class: "live-said", role: "status" })
  const heat = html("input", { type: "range", min: 0, max: 4, step: 0.25, value: 0, "aria-label": "Temperature", input: anew })
  const hot = html("span") // not said by itself: the slider tells it
  const button = (name, click) => html("button", { type: "button", click }, name)
  const more = (words) => () => ((count = Math.max(0, Math.min(MOST, count + words))), sing())
  const toggle = (name, pressed, click) => html("button", { type: "button", "aria-pressed": pressed, click }, name)
  const group = (name, ...buttons) => html("div", { class: "live-choices", role: "group", "aria-label": name }, html("span", { class: "live-said" }, name), ...buttons)
  const parts = PARTS.map((name, k) => toggle(name, !k, () => ((without = k ? name : ""), parts.forEach((each, j) => each.setAttribute("aria-pressed", j === k)), anew())))
  const heads = model.blocks.flatMap((block) => Array.from({ length: model.heads }, (_, head) => {
    const name = `${block} ${head}`
    return toggle(model.blocks.length > 1 ? `head ${head} of block ${block + 1}` : `head ${head}`, false, ({ currentTarget }) => {
      if (!silent.delete(name)) silent.add(name)
      currentTarget.setAttribute("aria-pressed", silent.has(name))
      anew()
    })
  }))
  const mask = toggle("hide the mask", false, () => ((causal = !causal), mask.setAttribute("aria-pressed", !causal), anew()))

  function begin() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean)
    const unknown = words.filter((word) => !model.words.includes(word))
    const typed = input.value.endsWith(" ") ? "" : words.at(-1) // and may not be done
    if (typed && unknown.length === 1 && unknown[0] === typed && model.words.some((word) => word.startsWith(typed))) return
    input.setAttribute("aria-invalid", unknown.length > 0)
    if (unknown.length || !words.length) said.textContent = `${unknown[0] ? `“${unknown[0]}” is not in the song` : "Type a word"}. Its words are ${model.words.join(", ")}.`
    else (said.textContent = ""), (beginning = words), anew()
  }

  // The likeliest word at a temperature of zero, else one drawn: a number from 0 to 1 falls into one of the words' shares.
  function next(scores, at) {
    if (!+heat.value) return scores.indexOf(Math.max(...scores))
    let left = (luck[at] ??= Math.random())
    return softmax(scores.map((score) => score / heat.value)).findIndex((chance) => (left -= chance) < 0)
  }

  function anew() {
    sung = []
    sing()
  }

  function sing() {
    const options = { without, causal, silent: [...silent] }
    sung.length = Math.min(sung.length, count)
    while (sung.length < count) sung.push(model.words.at(next(model.read(model.seen([...beginning, ...sung]), options).scores.at(-1), sung.length)))
    hot.textContent = `Temperature ${fixed(+heat.value)}${+heat.value ? "" : ": always the likeliest word"}`
    heat.setAttribute("aria-valuetext", hot.textContent)
    change([...beginning, ...sung], options, +heat.value || 1)
  }

  hot.textContent = "Temperature 0.00: always the likeliest word"
  return html("div", { class: "live-sing" },
    html("label", { class: "live-field" }, html("span", {}, "Begin with"), input), said,
    group("sing", button("one word", more(1)), button("a verse", more(VERSE)), button("one word less", more(-1)), button("begin again", more(-MOST)), button("new luck", () => ((luck.length = 0), anew()))),
    html("label", { class: "live-field" }, hot, heat),
    group("take away", ...parts), group("silence", ...heads), group("mask", mask))
}
