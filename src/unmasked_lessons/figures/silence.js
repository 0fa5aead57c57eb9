// What a singer sings, whole and without one of its heads. The page gives {"given": how many words of each text were given,
// "right": [verse][word], "sung": {what is silent: [verse][word]}, "start": [what is silent, verse]}.

import { figures, html } from "./figure.js"

function draw(figure, { given, right, sung, start }) {
  let [chosen, verse] = start
  const buttons = Object.keys(sung).map((name) => html("button", { type: "button", click: () => ((chosen = name), show()) }, name))
  const choice = html("input", {
    type: "range", min: 0, max: right.length - 1, value: verse, "aria-label": "verse", input: () => ((verse = +choice.value), show()),
  })
  const number = (at) => right[at][given - 2]
  const named = html("output", { class: "live-said" })
  const text = html("div", { class: "live-text", role: "img" })
  const told = html("p", { class: "live-told", "aria-live": "polite" })
  figure.append(
    html("div", { class: "live-choices", role: "group", "aria-label": "Heads" }, ...buttons),
    html("label", { class: "live-field" }, html("span", {}, "verse"), choice, named),
    text, told,
  )

  function show() {
    const [words, wanted] = [sung[chosen][verse], right[verse]]
    const isWrong = (place) => words[place] !== wanted[place]
    const kind = (place) => (place < given ? "live-given" : isWrong(place) ? "live-computed" : "live-stored")
    buttons.forEach((button) => button.setAttribute("aria-pressed", button.textContent === chosen))
    named.textContent = number(verse)
    choice.setAttribute("aria-valuetext", number(verse))
    text.replaceChildren(...words.map((word, place) => html("span", { class: kind(place) }, word)))
    const wrong = words.filter((_, place) => isWrong(place)).length
    text.setAttribute("aria-label", `${chosen}: ${words.join(" ")}`)
    told.textContent = `Of the ${words.length - given} words that it sings, ${wrong || "none"} ${wrong > 1 ? "are" : "is"} wrong.`
  }

  show()
}

figures("silence", draw)
