#!/usr/bin/env python3
"""Checks the alert rules and the unit in this folder with the programs that read them.

    packaging/check.py [PELTON]

promtool reads the rules and systemd-analyze the unit, with PELTON (default: target/release/pelton)
as its program. strace watches PELTON serve requests: the unit's SystemCallFilter must allow each
system call, because systemd kills a process for any other. A NOTE says which program is missing.
"""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

FOLDER = pathlib.Path(__file__).resolve().parent
UNIT = FOLDER / "systemd/pelton.service"
START_SECONDS = 60


def has(program, consequence):
    """Whether there is such a program; a NOTE says what follows where there is none."""
    if shutil.which(program):
        return True
    print(f"--- NOTE: no {program}: {consequence}")
    return False


def check_rules():
    subprocess.run(["promtool", "check", "rules", FOLDER / "prometheus/alerts.yaml"], check=True)


def check_unit(pelton):
    """systemd-analyze must say nothing; it ends with 0 after a warning, such as an unknown key."""
    with tempfile.TemporaryDirectory() as folder:
        unit = pathlib.Path(folder) / UNIT.name
        text = UNIT.read_text().replace("ExecStart=/usr/bin/pelton ", f"ExecStart={pelton} ")
        assert str(pelton) in text, "the unit starts another program"
        unit.write_text(text)
        verify = ["systemd-analyze", "verify", "--man=no", unit]
        done = subprocess.run(verify, capture_output=True, text=True)
        said = [line for line in done.stderr.splitlines() if UNIT.name in line]
        assert done.returncode == 0 and not said, done.stderr
    print("ok  systemd-analyze has no objection to the unit")


def groups():
    """The members of each group of system calls, as this systemd knows them."""
    printed = subprocess.run(
        ["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True
    )
    found, members = {}, set()
    for line in printed.stdout.splitlines():
        name = line.split("#")[0].strip()
        if name and not line[0].isspace():
            members = found.setdefault(name, set())
        elif name:
            members.add(name)
    return found


def allowed():
    """The system calls that the unit allows: its lines from top to bottom, `~` takes away."""
    known = groups()

    def calls(name):
        return set().union(*map(calls, known.get(name, ()))) if name[0] == "@" else {name}

    names = set()
    for line in re.findall(r"^SystemCallFilter=(.*)", UNIT.read_text(), re.M):
        listed = set().union(*map(calls, line.removeprefix("~").split()))
        names = names - listed if line[0] == "~" else names | listed
    # systemd adds these by itself.
    return names | calls("@default")


def ask(address, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"content-type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        answer.read()


def listening(log):
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        found = re.search(r"^listening on (http://\S+)", log.read_text(), re.M)
        if found:
            return found.group(1)
        time.sleep(0.05)
    raise SystemExit(f"the server does not listen:\n{log.read_text()}")


def used(pelton):
    """The system calls of a server from its start over requests and a reload to its end."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        trace, log, settings = folder / "trace", folder / "log", folder / "serve.yaml"
        settings.write_text(f"port: 0\nfiles: {folder / 'files'}\nusage_file: {folder / 'usage'}\n")
        command = ["strace", "-f", "-qq", "-o", trace, pelton, "serve", "--config", settings]
        with log.open("w") as out:
            strace = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            address = listening(log)
            ask(address, "/v1/completions", {"prompt": "Once", "max_tokens": 8, "stream": True})
            ask(address, "/metrics")
            # The server is the first process of the trace.
            server = int(trace.read_text().split(maxsplit=1)[0])
            for sent in (signal.SIGHUP, signal.SIGTERM):
                subprocess.run(["kill", f"-{sent.name[3:]}", str(server)], check=True)
                time.sleep(0.2)
            assert strace.wait(60) == 0, log.read_text()
        finally:
            strace.kill()
            strace.wait()
        # A line is `PID name(arguments) = result`, or `PID <... name resumed>`.
        return set(re.findall(r"^\d+ +([a-z_0-9]+)\(", trace.read_text(), re.M))


def check_calls(pelton):
    can_trace = ["strace", "-o", "/dev/null", "true"]
    if subprocess.run(can_trace, capture_output=True).returncode != 0:
        print("--- NOTE: strace may not trace here: the unit's SystemCallFilter is not tried")
        return
    calls, may = used(pelton), allowed()
    assert len(calls) > 30 and "execve" in calls, calls
    assert calls <= may, f"the unit forbids {sorted(calls - may)}, which the server calls"
    print(f"ok  the unit allows all {len(calls)} system calls of a server that is asked")


def main():
    pelton = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/release/pelton").resolve()
    if has("promtool", "the alert rules are not read by Prometheus"):
        check_rules()
    if has("systemd-analyze", "the unit is not read by systemd"):
        check_unit(pelton)
        if has("strace", "the unit's SystemCallFilter is not tried"):
            check_calls(pelton)


if __name__ == "__main__":
    main()
