"""The command line and the environment of one `vllm serve`. Pure functions."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import SecretStr

from hexprefect.errors import CallerMistake

ALWAYS = (
    # Our urgency is passed as vLLM's priority: without this policy it is silently ignored.
    *("--scheduling-policy", "priority"),
    # Tells queue, prefill and decode times with each answer: what profiles are learned from.
    "--enable-per-request-metrics",
    # /load counts what runs, whoever asked for it: a drain waits for all of it.
    "--enable-server-load-tracking",
    # Tells cached tokens: what prefix-aware dispatch is checked against.
    "--enable-prompt-tokens-details",
    # A line for each request and probe would fill the log, of which the end matters most.
    "--disable-uvicorn-access-log",
)
"""What every launched vLLM is started with, after which the pool's own arguments follow."""

OURS = {
    "--api-key": "Name its Secret block in the pool's variable `api_key_secret`",
    "--host": "Set the pool's variable `launch.host`",
    "--port": "Set the pool's variable `launch.port`",
    "--served-model-name": "Set the pool's variable `model`",
    "--uds": "Set the pool's variables `launch.host` and `launch.port`",
    "--shutdown-timeout": "Set the flow's parameter `drain_s`",
}
"""Arguments that may not be among a pool's own, each with the way to say it."""

_WITHHELD = ("PREFECT_", "HEXPREFECT_")
_WILDCARDS = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """One vLLM server.

    Args:
        model: hub name or folder of the model.
        served_model_name: how requests name it; by default as `model`.
        host: address to listen on; 0.0.0.0 for all, and then this machine's name is its address.
        port: to listen on.
        tensor_parallel_size: GPUs that the server spans.
        quantization: for example `fp8`; None for the model's own precision.
        max_num_seqs: sequences that the engine runs at once.
        max_model_len: tokens of prompt and answer together; None for the model's own limit.
        shutdown_timeout_s: how long vLLM itself lets requests finish once it is asked to end.
        extra_arguments: further words of the command line.
        executable: name or path of vLLM's command.
        environment: variables for the server beside those of this process.
        api_key: that requests must carry. Given to the server in its environment: a command line
            can be read by every user of a machine.

    Raises:
        CallerMistake: an extra argument says something that has a place of its own.
    """

    model: str
    port: int
    served_model_name: str | None = None
    host: str = "127.0.0.1"
    tensor_parallel_size: int = 1
    quantization: str | None = None
    max_num_seqs: int = 256
    max_model_len: int | None = None
    shutdown_timeout_s: int = 60
    extra_arguments: tuple[str, ...] = ()
    executable: str = "vllm"
    environment: Mapping[str, str] = field(default_factory=dict)
    api_key: SecretStr | None = None

    def __post_init__(self) -> None:
        for argument in self.extra_arguments:
            name = argument.partition("=")[0].replace("_", "-")
            if name in OURS:
                # The argument itself is not repeated: it may hold the key.
                raise CallerMistake(
                    f"{name} may not be among the extra arguments of vLLM.",
                    remedy=f"{OURS[name]} instead.",
                )

    @property
    def url(self) -> str:
        """Where others reach the server."""
        host = socket.gethostname() if self.host in _WILDCARDS else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def model_name(self) -> str:
        """How requests name the model."""
        return self.served_model_name or self.model

    def command(self) -> list[str]:
        """The words of the command line; none is a secret."""
        words = [
            *(self.executable, "serve", self.model),
            *("--served-model-name", self.model_name),
            *("--host", self.host, "--port", str(self.port)),
            *("--tensor-parallel-size", str(self.tensor_parallel_size)),
            *("--max-num-seqs", str(self.max_num_seqs)),
            *("--shutdown-timeout", str(self.shutdown_timeout_s)),
        ]
        if self.quantization is not None:
            words += ["--quantization", self.quantization]
        if self.max_model_len is not None:
            words += ["--max-model-len", str(self.max_model_len)]
        # The pool's own come last: of an argument that is given twice, vLLM takes the last.
        return [*words, *ALWAYS, *self.extra_arguments]

    def process_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The server's environment: what is inherited, without our settings and their secrets."""
        kept = {name: value for name, value in inherited.items() if not name.startswith(_WITHHELD)}
        # Of this process's own package: another Python has another.
        kept.pop("PYTHONPATH", None)
        # As an endpoint sends it: without the line's end that a form may have put behind it.
        own = "" if self.api_key is None else self.api_key.get_secret_value().strip()
        key = {"VLLM_API_KEY": own} if own else {}
        return {**kept, "PYTHONUNBUFFERED": "1", **self.environment, **key}
