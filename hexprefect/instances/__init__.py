"""What a request talks to: OpenAI-compatible servers, real, local or emulated, and their health.

The way in is `client.InstanceClient`. Servers: any URL (`endpoint.Endpoint`), a
local llama.cpp (`local_server.LocalServer`, with `local_model.ensure_model`), an emulated vLLM
(`emulator.Emulator`). Liveness is judged by `health.HealthMonitor`.
"""
