"""The subcommands of `hexprefect`, one module each; `hexprefect.cli` mounts them."""
