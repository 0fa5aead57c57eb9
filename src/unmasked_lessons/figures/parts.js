// What a model sings without one of its parts: a button for each, and the words, those that are wrong among them marked.
// The page gives {"right": the words of the verse, "songs": [{"name", "words", "share": of verses without a mistake}]}.

import { figures, html, percent } from "./figure.js"

function draw(figure, { right, songs }) {
  const buttons = songs.map((song) => html("button", { type: "button", click: () => choose(song) }, song.name))
  const text = html("div", { class: "live-text", role: "img" })
  const told = html("p", { class: "live-told", role: "status" })
  figure.append(html("div", { class: "live-choices", role: "group", "aria-label": "Parts" }, ...buttons), text, told)

  function choose(song) {
    buttons.forEach((each, k) => each.setAttribute("aria-pressed", songs[k] === song))
    const wrong = song.words.map((word, k) => word !== right[k])
    text.replaceChildren(...song.words.map((word, k) => html("span", { class: wrong[k] ? "live-computed" : "live-stored" }, word)))
    text.setAttribute("aria-label", song.words.map((word, k) => (wrong[k] ? `${word} (wrong)` : word)).join(" "))
    const count = wrong.filter(Boolean).length
    told.textContent = `Wrong here: ${count} of ${right.length} words. Of all verses it sings ${percent(song.share)} without a mistake.`
  }

  choose(songs[0])
}

figures("parts", draw)
