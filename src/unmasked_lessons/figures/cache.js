// Writing with a cache beside writing without one, step by step: for which words a key and a value are computed, and
// which are kept. The page gives what its run measured: {"words", "prompt": how many of them the reader gave, "computed":
// {"without", "with"}: for how many words each step computed them, "kept": bytes in the cache after each step, "likely":
// for each step the likeliest words with their probabilities}.

import { figures, html, percent } from "./figure.js"

const plural = (count) => `${count} word${count === 1 ? "" : "s"}`
export const size = (bytes) => (bytes < 1024 ? `${bytes} bytes` : `${+(bytes / 1024).toFixed(1)} KiB`)

function draw(figure, { words, prompt, computed, kept, likely }) {
  const last = likely.length - 1
  const sides = [side("Without a cache", computed.without), side("With a cache", computed.with, kept)]
  const show = () => go(+step.value)
  const step = html("input", { type: "range", min: 0, max: last, step: 1, "aria-label": "Step of the writing", input: show })
  const [before, after] = [html("button", { type: "button", click: () => go(+step.value - 1) }, "back"), html("button", { type: "button", click: () => go(+step.value + 1) }, "next word")]
  const told = html("p", { class: "live-told", "aria-live": "polite" })
  figure.append(
    html("div", { class: "live-choices live-steps", role: "group", "aria-label": "Step" }, before, step, after),
    told,
    html("div", { class: "live-pair" }, ...sides.map(({ part }) => part)),
  )

  function side(title, news, bytes) {
    const chips = words.map((word) => html("span", {}, word))
    const [now, all] = [html("p"), html("p", { class: "live-said" })]
    const list = html("div", { class: "live-text", role: "img" }, ...chips)
    return { part: html("div", {}, html("p", {}, html("b", {}, title)), list, now, all), at }

    function at(step) {
      const [read, fresh] = [prompt + step, news[step]]
      chips.forEach((chip, place) => {
        const known = place < read - fresh ? "live-stored" : place < read ? "live-computed" : place === read ? "live-written" : "live-unwritten"
        chip.className = known
      })
      now.textContent = `This step computes keys and values of ${plural(fresh)}.`
      const sum = news.slice(0, step + 1).reduce((a, b) => a + b)
      all.textContent = `So far: of ${plural(sum)}. Kept: ${bytes ? size(bytes[step]) : "nothing"}.`
      const place = (from, to) => words.slice(from, to).join(" ") || "nothing"
      list.setAttribute("aria-label", `${title}: computed: ${place(read - fresh, read)}; kept from before: ${place(0, read - fresh)}`)
    }
  }

  function go(to) {
    const at = Math.max(0, Math.min(last, to))
    step.value = at
    step.setAttribute("aria-valuetext", `step ${at + 1} of ${last + 1}`)
    before.disabled = at === 0
    after.disabled = at === last
    sides.forEach((each) => each.at(at))
    const [[word, chance], ...others] = likely[at]
    const rest = others.map(([other, share]) => `${other} ${percent(share)}`).join(", ")
    told.replaceChildren(html("b", {}, `Step ${at + 1} of ${last + 1}.`), ` The model has read ${plural(prompt + at)}, and writes `, html("b", {}, word), ` (${percent(chance)}; then come ${rest}).`)
  }

  go(0)
}

figures("cache", draw)
