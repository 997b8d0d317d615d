"use strict";
const since = Date.now() - Date.parse(document.querySelector("time").dateTime);
document.getElementById("stale").hidden = since < 60000;
