"""Spillway: its HTTP server, all requests at once."""

import atexit
import http.client
import json
import shlex
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import common


def add_arguments(parser):
    """The binary and more flags for `serve`."""
    parser.add_argument("--binary", required=True)
    parser.add_argument("--extra", default="")


def free_port():
    """A port on which nobody listens now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(port, method, path, body=None, timeout=3600):
    """One HTTP exchange; returns (status, text)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(
            method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def start(options):
    """Starts `spillway serve`, waits until it is healthy; returns its port."""
    port = free_port()
    command = [
        options.binary,
        "serve",
        str(options.model),
        "--port",
        str(port),
        "--format",
        options.format,
        "--threads",
        str(options.threads),
        *shlex.split(options.extra),
    ]
    server = subprocess.Popen(command)

    def stop():
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()

    atexit.register(stop)
    while server.poll() is None:
        try:
            if ask(port, "GET", "/health", timeout=5)[0] == 200:
                return port
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"Error: spillway serve ended with status {server.returncode}")


def load(options):
    """The server, with the weights loaded."""
    version = subprocess.run([options.binary, "--version"], capture_output=True, text=True).stdout.strip()
    port = start(options)
    name = json.loads(ask(port, "GET", "/v1/models")[1])["data"][0]["id"]

    def complete(prompt, new_tokens):
        body = {
            "model": name,
            "prompt": prompt,
            "max_tokens": new_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "return_token_ids": True,
        }
        status, text = ask(port, "POST", "/v1/completions", body)
        if status != 200:
            raise RuntimeError(f"Error: HTTP {status}: {text[:150]}")
        answer = json.loads(text)
        tokens = answer["choices"][0].get("token_ids")
        return tokens if tokens is not None else [0] * answer["usage"]["completion_tokens"]

    def generate(prompts, new_tokens):
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda p: complete(p, new_tokens), prompts))

    return generate, {"version": version.split()[-1] if version else "?"}


common.run(load, add_arguments=add_arguments)
