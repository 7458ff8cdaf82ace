// Command driver is a small CSI driver on the official Go module of the specification: all services in one program, which
// also registers with the kubelet. Its volumes are directories of one machine, published by bind mounts, so these have no
// sizes to keep: capacities are remembered and answered. Asked for devices (with --stage) it gives loop devices, which have.
//
// Switches make calls fail or hang, and have every request written down:
//
//	--fail-NodePublishVolume=Aborted:3   the first three such calls fail
//	--hang=NodeStageVolume               these calls never end by themselves
//	--record=calls.jsonl                 {"call":"NodeStageVolume","seconds":120.5,"request":{...}} for each, secrets included
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

type options struct {
	name, endpoint, node, dataDir            string
	registrationSocket, registrationEndpoint string
	attach, stage, modesOfPods, mountGroup   bool
	maxVolumes                               int64
	topology                                 map[string]string
}

func main() {
	log.SetFlags(log.Lmicroseconds)
	o := options{topology: map[string]string{}}
	flag.StringVar(&o.name, "name", "dir.peers.davit.dev", "name of the driver")
	flag.StringVar(&o.endpoint, "endpoint", "", "socket of the services")
	flag.StringVar(&o.node, "node-id", "", "the driver's name for this node")
	flag.StringVar(&o.dataDir, "data-dir", "", "where volumes are kept")
	flag.StringVar(&o.registrationSocket, "registration-socket", "", "socket in the kubelet's plugins_registry; none: not registered")
	flag.StringVar(&o.registrationEndpoint, "kubelet-registration-path", "", "--endpoint as the kubelet sees it, if that differs")
	flag.BoolVar(&o.attach, "attach", false, "volumes have to be attached")
	flag.BoolVar(&o.stage, "stage", false, "volumes have to be staged")
	flag.BoolVar(&o.modesOfPods, "single-node-multi-writer", false, "know access modes for pods of one node")
	flag.BoolVar(&o.mountGroup, "volume-mount-group", false, "give files to fsGroup in the driver")
	flag.Int64Var(&o.maxVolumes, "max-volumes", 0, "most volumes on the node; 0: any number")
	flag.Func("topology", "key=value of where the node is; may be repeated", func(text string) error {
		key, value, found := strings.Cut(text, "=")
		if !found {
			return errors.New("no = in it")
		}
		o.topology[key] = value
		return nil
	})
	var f faults
	f.flags(flag.CommandLine)
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, &f); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, o options, f *faults) error {
	if o.endpoint == "" || o.node == "" || o.dataDir == "" {
		return errors.New("--endpoint, --node-id and --data-dir are needed")
	}
	o.endpoint = strings.TrimPrefix(o.endpoint, "unix://")
	if o.registrationEndpoint == "" {
		o.registrationEndpoint = o.endpoint
	}
	disk, err := openDisk(o.dataDir, o.node)
	if err != nil {
		return err
	}
	services, err := listen(o.endpoint)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(f.intercept))
	csi.RegisterIdentityServer(server, &identity{options: o})
	csi.RegisterControllerServer(server, &controller{options: o, disk: disk})
	csi.RegisterNodeServer(server, &node{options: o, disk: disk})
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(services) }()
	defer server.Stop()
	if o.registrationSocket != "" {
		registrar, err := listen(o.registrationSocket)
		if err != nil {
			return err
		}
		registration := registration(o, ended)
		go func() { ended <- registration.Serve(registrar) }()
		// Closes the listener, which removes the socket: the kubelet's sign that the driver has gone.
		defer registration.Stop()
	}
	log.Printf("%s serves at %s", o.name, o.endpoint)
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return fmt.Errorf("stopped serving: %w", err)
	}
}

// inside is whether a path is below a folder, or it.
func inside(path, folder string) bool {
	relative, err := filepath.Rel(folder, path)
	return err == nil && relative != ".." && !strings.HasPrefix(relative, "../")
}
