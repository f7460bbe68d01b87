"""Every request of the protocol, implemented once; the transports in `superfluid.front` only translate."""
