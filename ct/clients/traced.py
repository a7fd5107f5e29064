"""Prints each call to a client library, with its result."""

import hashlib
import json


class Traced:
    """Wraps a client: each call through it prints one line, `name.call(arguments) -> JSON`.

    The exceptions in `errors` become results; any other exception ends the scenario.
    """

    def __init__(self, name, client, errors):
        self._name, self._client, self._errors = name, client, errors

    def __getattr__(self, method):
        def call(*arguments, **options):
            line, result = self.quiet_call(method, *arguments, **options)
            print(line, flush=True)
            return result

        return call

    def quiet_call(self, method, *arguments, **options):
        """Calls; returns the line without printing it, and the plain result."""
        shown = [text(value) for value in arguments]
        shown += [f"{name}={text(value)}" for name, value in options.items()]
        try:
            result = getattr(self._client, method)(*arguments, **options)
            answer = plain(result)
        except self._errors as error:
            result, answer = None, {type(error).__name__: plain(vars(error))}
        line = f"{self._name}.{method}({', '.join(shown)}) -> {json.dumps(answer)}"
        return line, result


def text(value):
    return json.dumps(plain(value), ensure_ascii=False)


def plain(value):
    """Converts a value for JSON; long or binary values become length and digest."""
    if isinstance(value, str) and len(value) > 80:
        value = value.encode()
    if isinstance(value, bytes):
        if value.isascii() and len(value) <= 80:
            return value.decode()
        return f"{len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()[:16]}"
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if hasattr(value, "__dict__"):
        return plain(vars(value))
    return value
