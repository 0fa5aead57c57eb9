// A translation: choose a word that was written, and the words that were read light up, as much as the model looked at each
// to write it. The page gives {"sentences": [{"read", "written", "weights": [written][read]}], "start": the word that is
// chosen first}.

import { figures, html, percent, roving } from "./figure.js"

function draw(figure, { sentences, start }) {
  const choices = sentences.map((each) => html("button", { type: "button", click: () => choose(each) }, each.read.join(" ")))
  const read = html("div", { class: "live-line" })
  const written = html("div", { class: "live-line", role: "group", "aria-label": "Words that were written: the arrow keys go on" })
  const told = html("p", { class: "live-told", role: "status" })
  figure.append(
    html("div", { class: "live-choices", role: "group", "aria-label": "Sentences" }, ...choices),
    read,
    html("p", {}, "Choose a word that was written:"),
    written,
    told,
  )

  let sentence, shares, buttons, pinned

  function choose(chosen) {
    sentence = chosen
    choices.forEach((each, k) => each.setAttribute("aria-pressed", sentences[k] === chosen))
    shares = chosen.read.map(() => html("span", { class: "live-share" }))
    read.replaceChildren(...chosen.read.map((word, j) => html("span", {}, html("span", { class: "live-word" }, word), shares[j])))
    buttons = chosen.written.map((word, i) =>
      html(
        "button",
        {
          type: "button",
          lang: "fr",
          focus: () => pin(i),
          click: () => pin(i),
          pointerenter: ({ pointerType }) => pointerType === "mouse" && show(i),
        },
        word,
      ),
    )
    written.replaceChildren(...buttons)
    roving(buttons)(start)
    pin(start)
  }

  function pin(i) {
    pinned = i
    show(i)
  }

  function show(i) {
    const { read: words, written: french, weights } = sentence
    const most = weights[i].indexOf(Math.max(...weights[i]))
    weights[i].forEach((weight, j) => {
      shares[j].textContent = percent(weight)
      read.children[j].style.setProperty("--share", weight)
    })
    buttons.forEach((each, k) => each.setAttribute("aria-pressed", k === i))
    const [word, before] = [i, i - 1].map((k) => html(k < i ? "i" : "b", { lang: "fr" }, french[k] ?? ""))
    const asks = i ? [" It asks with ", before, ", the word before, and with the place of the next."] : [" It asks with its place alone: no word is written yet."]
    told.replaceChildren("To write ", word, ", the model takes most from ", html("b", {}, words[most]), `: ${percent(weights[i][most])}.`, ...asks)
  }

  written.addEventListener("pointerleave", () => show(pinned))
  choose(sentences[0])
}

figures("translation", draw)
