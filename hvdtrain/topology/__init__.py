"""Where ranks run: hosts, hostfiles, node lists and what a scheduler's environment says. No torch, no I/O."""
