"use strict";
// Prints each call to a client library, with its result.

const { createHash } = require("crypto");

/**
 * Wraps a client: each call through it prints one line, `name.call(arguments) -> JSON`, and returns
 * the plain result of `call(method, arguments)`, a promise. An error for which `errorText(error)`
 * returns a text becomes a result; any other error ends the scenario. `quietCall` returns
 * [line, result] without printing.
 */
function traced(name, call, errorText) {
  async function quietCall(method, ...given) {
    let result = null;
    let answer;
    try {
      result = await call(method, given);
      answer = plain(result);
    } catch (error) {
      const text = errorText(error);
      if (text === undefined) throw error;
      answer = { refused: text };
    }
    const texts = given.map((value) => JSON.stringify(plain(value)));
    return [`${name}.${method}(${texts.join(", ")}) -> ${JSON.stringify(answer)}`, result];
  }

  return new Proxy({}, {
    get(_, method) {
      if (method === "quietCall") return quietCall;
      if (method === "then") return undefined; // The proxy is no promise.
      return async (...given) => {
        const [line, result] = await quietCall(method, ...given);
        console.log(line);
        return result;
      };
    },
  });
}

/** Converts a value for JSON; long or binary values become length and digest. */
function plain(value) {
  if (value === undefined) return null;
  if (typeof value === "string") {
    return value.startsWith("---\n") ? yaml(value) : text(Buffer.from(value));
  }
  if (Buffer.isBuffer(value)) return text(value);
  if (Array.isArray(value)) return value.map(plain);
  if (value instanceof Object) {
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, plain(each)]));
  }
  return value;
}

function text(bytes) {
  if (bytes.length <= 80 && bytes.every((byte) => byte < 128)) return bytes.toString();
  const digest = createHash("sha256").update(bytes).digest("hex").slice(0, 16);
  return `${bytes.length} bytes, sha256 ${digest}`;
}

/** Parses the two forms of YAML that beanstalkd writes, with or without quotes. */
function yaml(body) {
  const lines = body.split("\n").slice(1, -1);
  if (lines.every((line) => line.startsWith("- "))) return lines.map((line) => line.slice(2));
  const entries = lines.map((line) => line.match(/^(.*?): "?(.*?)"?$/).slice(1));
  return Object.fromEntries(entries);
}

const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

/** Runs a scenario; an unexpected error ends it with status 1. */
function scenario(steps) {
  steps().then(() => {
    console.log("done");
    process.exit(0);
  }, (error) => {
    console.log(error);
    process.exit(1);
  });
}

module.exports = { traced, sleep, scenario };
