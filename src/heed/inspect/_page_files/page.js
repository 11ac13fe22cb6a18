// The page of a file; the data is embedded in it.

const data = JSON.parse($("data").textContent);
data.weights = $("weights").textContent;
$("data").remove();
$("weights").remove();
unpack(data).then(show).catch((error) => {
  document.querySelector("main").textContent =
    `This page cannot be displayed (it requires a browser from 2023 or newer): ${error.message}`;
});
