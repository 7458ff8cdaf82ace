// Command podresources is a client of the podresources API built on the official module: it prints what List and
// GetAllocatableResources answer, as JSON.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"davit.dev/tests/peers/dial"
)

func main() {
	socket := flag.String("socket", "/var/lib/kubelet/pod-resources/kubelet.sock", "path of the podresources socket")
	style := flag.String("dial", "unix", "how the socket is dialled: "+dial.Styles)
	limit := flag.Int("limit", 4<<20, "largest answer to take, in bytes")
	flag.Parse()
	if err := run(*socket, *style, *limit); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(socket, style string, limit int) error {
	connection, err := dial.Socket(socket, style, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(limit)))
	if err != nil {
		return err
	}
	defer connection.Close()
	client := podresources.NewPodResourcesListerClient(connection)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	list, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return fmt.Errorf("List: %w", err)
	}
	allocatable, err := client.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return fmt.Errorf("GetAllocatableResources: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"list": list, "allocatable": allocatable})
}
