package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// listen binds a socket for its owner only, in the place of one that an earlier run left.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	return net.Listen("unix", path)
}

type registrar struct {
	registerapi.UnimplementedRegistrationServer
	options
	refused chan<- error
}

// registration is what node-driver-registrar does beside other drivers.
func registration(o options, refused chan<- error) *grpc.Server {
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, &registrar{options: o, refused: refused})
	return server
}

func (r *registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type:              registerapi.CSIPlugin,
		Name:              r.name,
		Endpoint:          r.registrationEndpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus ends the program when the kubelet refuses it, as the registrar does.
func (r *registrar) NotifyRegistrationStatus(_ context.Context, status *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if status.PluginRegistered {
		log.Print("registered")
	} else {
		select {
		case r.refused <- fmt.Errorf("not registered: %s", status.Error):
		default:
		}
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
