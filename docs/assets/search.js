/* The worker of the search. It takes out of a query what says nothing, and leaves the rest to the theme's worker, whose
   name the build writes in. Error messages are full of numbers, and of words that every page has. What the theme's search
   takes for operators are signs of code here: ~mask, -inf, a*b, q^T and x:y are looked for, and exclude nothing.
   The index is more than all else that a visit loads: the theme's worker is given it once somebody searches. */

const [SETUP, READY, QUERY, RESULT] = [0, 1, 2, 3] // the theme's messages

const IDLE = new Set(
  ("a an and are as at be but by can could do does for from get has have how i if in into is it its me my of on or " +
    "should so than that the then there this to was what when where which who why will with you your").split(" "))

function telling(query) {
  const words = query.split(/[\s()[\]{}"'`,;:=<>!?~^*+\\|&/]+|(?<![\p{L}\p{N}_])[-−–]+|[-−–]+(?![\p{L}\p{N}_])|\.(?=\s|$)/u)
  const kept = words.filter((word) => word && !IDLE.has(word.toLowerCase()) && !/^[\d.x]+$/.test(word))
  return (kept.length ? kept : words).join(" ").trim()
}

const pass = (type, data) => dispatchEvent(new MessageEvent("message", { data: { type, data } }))

let ready
async function load() {
  const index = await (await fetch(new URL("../search/search_index.json", location))).json()
  pass(SETUP, { ...index, options: { suggest: true } })
  await new Promise((done) => setTimeout(done)) // the theme's worker sets itself up in microtasks
}

// The theme's listener comes after this one, and hears only what this one passes on.
addEventListener("message", async (event) => {
  if (!event.isTrusted) return
  event.stopImmediatePropagation()
  const { type, data } = event.data
  if (type !== QUERY) return
  const words = telling(data)
  if (!words) return postMessage({ type: RESULT, data: { items: [] } })
  try {
    await (ready ??= load())
  } catch {
    return (ready = undefined) // the page tells that the index did not come
  }
  pass(QUERY, words)
})
importScripts("THEMES_WORKER")
postMessage({ type: READY })
