/* The theme makes a landmark of each copy button's place. There are dozens of them on a page, and none leads anywhere.
   And it takes a button's title, which is its only name, away while it shows the title. */

new MutationObserver((changes) => {
  for (const { addedNodes } of changes)
    for (const added of addedNodes)
      if (added.matches?.(".md-code__nav")) {
        added.setAttribute("role", "presentation")
        added.querySelectorAll("[title]").forEach((button) => button.setAttribute("aria-label", button.title))
      }
}).observe(document.documentElement, { childList: true, subtree: true })

/* A picture opens larger, with its caption: at a click on it, or by the button in its corner. */
;(() => {
  const dialog = document.createElement("dialog")
  dialog.className = "enlarged"
  const shut = document.createElement("button")
  Object.assign(shut, { type: "button", textContent: "Close" })
  shut.addEventListener("click", () => dialog.close())
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close())

  function open(button, pictures, caption) {
    const shown = pictures.find((each) => each.checkVisibility()) ?? pictures[0]
    const copy = shown.cloneNode(true)
    const { width, height } = shown.getBoundingClientRect()
    // As large as the window has room for; on a phone larger than that, and it can be moved.
    const large = Math.max(Math.min((innerWidth * 0.92) / width, (innerHeight * 0.8) / height), 1.6)
    copy.style.width = `${Math.round(width * large)}px`
    const place = document.createElement("div")
    place.tabIndex = 0
    place.setAttribute("role", "region")
    place.setAttribute("aria-label", "The picture, larger")
    place.append(copy)
    dialog.replaceChildren(shut, place, ...(caption ? [caption.cloneNode(true)] : []))
    dialog.setAttribute("aria-label", caption?.querySelector("b")?.textContent ?? "Figure")
    if (!dialog.isConnected) document.body.append(dialog)
    dialog.addEventListener("close", () => button.focus({ preventScroll: true }), { once: true })
    dialog.showModal()
  }

  function setup() {
    for (const place of document.querySelectorAll(".jp-OutputArea-output")) {
      const pictures = [...place.querySelectorAll("img.figure")]
      if (!pictures.length || place.querySelector(".enlarge")) continue
      const caption = place.querySelector("figcaption")
      const button = document.createElement("button")
      Object.assign(button, { type: "button", className: "enlarge", title: "Enlarge" })
      button.setAttribute("aria-label", `Enlarge ${caption?.querySelector("b")?.textContent.replace(".", "") ?? "the picture"}`)
      button.addEventListener("click", () => open(button, pictures, caption))
      for (const picture of pictures) picture.addEventListener("click", () => open(button, pictures, caption))
      pictures[0].before(button)
    }
  }
  window.document$ ? document$.subscribe(setup) : document.addEventListener("DOMContentLoaded", setup)
})()
