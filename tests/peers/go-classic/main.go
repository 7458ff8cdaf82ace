// Command go-classic is a driver of classic dynamic resource allocation built on the official libraries of Kubernetes
// 1.26: slots of nodes, so many on each. As `controller` it allocates claims, as `node` it prepares them.
//
// A ResourceClass refers to a ConfigMap that says where slots are:
//
//	nodes: node-1,node-2   the nodes that have any
//	slots: "2"             how many each has
//	shareable: "true"      whether several pods may use a claim
//
// A ResourceClaim may refer to a ConfigMap with `slots`, how many it takes, by default one. All other entries of both
// become variables of the containers.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"
)

const usage = "usage: go-classic controller|node [flags]"

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, half string, args []string) error {
	flags := flag.NewFlagSet(half, flag.ContinueOnError)
	klog.InitFlags(flags)
	driver := flags.String("driver", "slots.peers.davit.dev", "name of the driver")
	switch half {
	case "controller":
		kubeconfig := flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "path of the kubeconfig")
		content := flags.String("content-type", "application/json", "media type of requests and answers")
		if err := flags.Parse(args); err != nil {
			return err
		}
		return allocate(ctx, *driver, *kubeconfig, *content)
	case "node":
		var places places
		flags.StringVar(&places.registry, "registry", "/var/lib/kubelet/plugins_registry", "folder of registration sockets")
		flags.StringVar(&places.socket, "socket", "", "path of the driver's own socket")
		flags.StringVar(&places.cdi, "cdi-dir", "/var/run/cdi", "folder of CDI files")
		node := flags.String("node", "", "name of the node")
		if err := flags.Parse(args); err != nil {
			return err
		}
		return serve(ctx, *driver, *node, places)
	default:
		return fmt.Errorf("unknown half %q\n%s", half, usage)
	}
}
