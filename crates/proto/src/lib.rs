//! gRPC services of the node: device plugins, podresources, plugin registration, CRI; unix sockets that get on with Go peers.
