//! Exec, attach and port-forward streams: SPDY/3.1 and WebSocket.
