// Package dial opens connections to unix sockets in the ways that are found in the field. They differ in the :authority
// that the server sees.
package dial

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Styles names the ways.
const Styles = "unix (localhost), path and passthrough (the path, percent-encoded), raw (the bare path, as grpc-go 1.32 sent it)"

// Socket returns a connection to the socket at path.
func Socket(path, style string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	dialer := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	})
	options := append(more, grpc.WithTransportCredentials(insecure.NewCredentials()))
	switch style {
	case "unix":
		return grpc.NewClient("unix://"+path, options...)
	case "path":
		return grpc.Dial(path, append(options, dialer)...) //nolint:staticcheck // what deployed programs call
	case "passthrough":
		return grpc.NewClient("passthrough:///"+path, append(options, dialer)...)
	case "raw":
		return grpc.NewClient("passthrough:///"+path, append(options, dialer, grpc.WithAuthority(path))...)
	}
	return nil, fmt.Errorf("no way to dial is called %q", style)
}
