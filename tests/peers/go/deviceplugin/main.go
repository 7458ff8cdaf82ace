// Command deviceplugin is a device plugin built on the official module. It serves so many devices of a resource,
// registers itself by Register on the kubelet's socket, and again whenever that socket is made anew; or waits in a folder
// of the plugins registry until it is asked. SIGUSR1 makes its last device unhealthy, SIGUSR2 healthy again. For each call
// it prints the method and the :authority that it saw.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"davit.dev/tests/peers/dial"
)

type plugin struct {
	api.UnimplementedDevicePluginServer
	devices []*api.Device
	changes chan string // the health of the last device
}

type options struct {
	dir, registry, socket, style, resource string
	count                                  int
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", api.DevicePluginPath, "folder of the kubelet's device plugin sockets")
	flag.StringVar(&o.registry, "registry", "", "folder of the plugins registry; nothing is registered by Register then")
	flag.StringVar(&o.socket, "socket", "peer.sock", "name of the plugin's socket")
	flag.StringVar(&o.style, "dial", "unix", "how the kubelet is dialled: "+dial.Styles)
	flag.StringVar(&o.resource, "resource", "peers.davit.dev/thing", "name of the resource")
	flag.IntVar(&o.count, "count", 4, "how many devices")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(o options) error {
	p := &plugin{changes: make(chan string, 1)}
	for i := range o.count {
		p.devices = append(p.devices, &api.Device{
			ID: fmt.Sprintf("thing-%d", i), Health: api.Healthy,
			Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 0}}},
		})
	}
	folder := o.dir
	if o.registry != "" {
		folder = o.registry
	}
	socket := filepath.Join(folder, o.socket)
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(
		func(ctx context.Context, r any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			tell(ctx, info.FullMethod)
			return next(ctx, r)
		}), grpc.StreamInterceptor(
		func(s any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			tell(stream.Context(), info.FullMethod)
			return next(s, stream)
		}))
	api.RegisterDevicePluginServer(server, p)
	if o.registry != "" {
		registration.RegisterRegistrationServer(server, &registrar{name: o.resource})
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	registered := ""
	for tick := time.Tick(200 * time.Millisecond); ; {
		now := identity(filepath.Join(o.dir, "kubelet.sock"))
		if o.registry == "" && now != "" && now != registered {
			if err := register(o); err == nil {
				registered = now
				fmt.Println("registered")
			} else {
				fmt.Println("not registered:", err)
			}
		}
		select {
		case <-tick:
		case s := <-signals:
			switch s {
			case syscall.SIGUSR1:
				p.changes <- api.Unhealthy
			case syscall.SIGUSR2:
				p.changes <- api.Healthy
			default:
				return nil
			}
		}
	}
}

// identity tells one socket file from the next of the same name.
func identity(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.Sys().(*syscall.Stat_t).Ino, info.ModTime())
}

func tell(ctx context.Context, method string) {
	values, _ := metadata.FromIncomingContext(ctx)
	fmt.Println(method, values.Get(":authority"))
}

func register(o options) error {
	connection, err := dial.Socket(filepath.Join(o.dir, "kubelet.sock"), o.style)
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: o.socket, ResourceName: o.resource,
		Options: &api.DevicePluginOptions{GetPreferredAllocationAvailable: true, PreStartRequired: true},
	})
	return err
}

// registrar answers who the plugin is.
type registrar struct {
	registration.UnimplementedRegistrationServer
	name string
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.DevicePlugin, Name: r.name, SupportedVersions: []string{api.Version},
	}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	fmt.Println("registered", s.PluginRegistered, s.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{GetPreferredAllocationAvailable: true, PreStartRequired: true}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	for {
		if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case health := <-p.changes:
			p.devices[len(p.devices)-1].Health = health
			fmt.Println("health", health)
		}
	}
}

// GetPreferredAllocation prefers the devices from the end of the list.
func (p *plugin) GetPreferredAllocation(_ context.Context, r *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	response := &api.PreferredAllocationResponse{}
	for _, container := range r.ContainerRequests {
		chosen := append([]string{}, container.MustIncludeDeviceIDs...)
		for i := len(p.devices) - 1; i >= 0 && len(chosen) < int(container.AllocationSize); i-- {
			id := p.devices[i].ID
			if contains(container.AvailableDeviceIDs, id) && !contains(chosen, id) {
				chosen = append(chosen, id)
			}
		}
		response.ContainerResponses = append(response.ContainerResponses,
			&api.ContainerPreferredAllocationResponse{DeviceIDs: chosen})
	}
	return response, nil
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

func (p *plugin) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range r.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{
			Envs:        map[string]string{"PEER_THINGS": strings.Join(container.DevicesIds, ",")},
			Annotations: map[string]string{"peers.davit.dev/things": strings.Join(container.DevicesIds, ",")},
		})
	}
	return response, nil
}

func (p *plugin) PreStartContainer(_ context.Context, r *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	fmt.Println("prestart", strings.Join(r.DevicesIds, ","))
	return &api.PreStartContainerResponse{}, nil
}
