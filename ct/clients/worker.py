"""README's worker, literally but for the address: arguments are `tcp HOST PORT` or `unix PATH`."""

import json
import subprocess
import sys
from pathlib import Path

import greenstalk
from traced import Traced

ADDRESS = sys.argv[2] if sys.argv[1] == "unix" else (sys.argv[2], int(sys.argv[3]))

readme = Path(__file__).with_name("README.md").read_text()
program = readme.partition("```python\n")[2].partition("```")[0]
before, _, after = program.partition('("127.0.0.1", 11300)')
worker = subprocess.Popen([sys.executable, "-c", f"{before}{ADDRESS!r}{after}"], stdout=subprocess.PIPE, text=True)
client = Traced("client", greenstalk.Client(ADDRESS, use="greetings"), greenstalk.Error)
client.put('{"name": "Ann"}')
print("worker.stdout.readline() ->", json.dumps(worker.stdout.readline()))

print("# a job that fails")
job = client.put("no JSON")
watcher = greenstalk.Client(ADDRESS)
while (state := watcher.stats_job(job)["state"]) != "buried":
    if state == "delayed":
        client.kick_job(job)
worker.terminate()
worker.wait()
seen = {key: watcher.stats_job(job)[key] for key in ("state", "releases", "buries", "kicks")}
print("watcher.stats_job(job) ->", json.dumps(seen))
client.delete(job)
print("done")
