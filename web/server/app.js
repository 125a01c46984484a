/** The page of `glinfer serve`: models of the server that it came from. */

import { startPage } from "../page/page.js";
import { Client } from "./client.js";
import { ServerEngine } from "./engine.js";

startPage(new ServerEngine(new Client(document.baseURI)));
