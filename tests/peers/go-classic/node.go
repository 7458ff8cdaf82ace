package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1alpha1"
)

// places are the folders the kubelet and the driver meet in.
type places struct {
	registry, socket, cdi string
}

type nodeServer struct {
	driver, node, cdi string
}

// serve runs the node plugin until the context ends.
func serve(ctx context.Context, driver, node string, p places) error {
	for _, folder := range []string{p.registry, filepath.Dir(p.socket), p.cdi} {
		if err := os.MkdirAll(folder, 0o750); err != nil {
			return err
		}
	}
	plugin, err := kubeletplugin.Start(&nodeServer{driver, node, p.cdi},
		kubeletplugin.DriverName(driver),
		kubeletplugin.RegistrarSocketPath(filepath.Join(p.registry, driver+"-reg.sock")),
		kubeletplugin.PluginSocketPath(p.socket),
		kubeletplugin.KubeletPluginSocketPath(p.socket),
	)
	if err != nil {
		return err
	}
	defer plugin.Stop()
	<-ctx.Done()
	return nil
}

type cdiSpec struct {
	Version string      `json:"cdiVersion"`
	Kind    string      `json:"kind"`
	Devices []cdiDevice `json:"devices"`
}

type cdiDevice struct {
	Name  string   `json:"name"`
	Edits cdiEdits `json:"containerEdits"`
}

type cdiEdits struct {
	Env []string `json:"env"`
}

func (s *nodeServer) file(uid string) string {
	return filepath.Join(s.cdi, "classic-"+uid+".json")
}

// NodePrepareResource writes the claim's CDI file.
func (s *nodeServer) NodePrepareResource(_ context.Context, request *drapb.NodePrepareResourceRequest) (*drapb.NodePrepareResourceResponse, error) {
	var h handle
	if err := json.Unmarshal([]byte(request.ResourceHandle), &h); err != nil {
		return nil, fmt.Errorf("resource handle: %w", err)
	}
	if h.Node != s.node {
		return nil, fmt.Errorf("allocated on %s, this is %s", h.Node, s.node)
	}
	env := []string{fmt.Sprintf("CLASSIC_SLOTS=%d", h.Slots), "CLASSIC_CLAIM=" + request.ClaimName}
	for key, value := range h.Env {
		env = append(env, "CLASSIC_"+key+"="+value)
	}
	slices.Sort(env)
	name := "claim-" + request.ClaimUid
	spec := cdiSpec{"0.3.0", s.driver + "/slots", []cdiDevice{{name, cdiEdits{env}}}}
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	draft := s.file(request.ClaimUid) + ".draft"
	if err := os.WriteFile(draft, text, 0o644); err != nil {
		return nil, err
	}
	if err := os.Rename(draft, s.file(request.ClaimUid)); err != nil {
		return nil, err
	}
	fmt.Println("prepared", request.Namespace, request.ClaimName)
	return &drapb.NodePrepareResourceResponse{CdiDevices: []string{spec.Kind + "=" + name}}, nil
}

// NodeUnprepareResource removes the claim's CDI file.
func (s *nodeServer) NodeUnprepareResource(_ context.Context, request *drapb.NodeUnprepareResourceRequest) (*drapb.NodeUnprepareResourceResponse, error) {
	if err := os.Remove(s.file(request.ClaimUid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fmt.Println("unprepared", request.Namespace, request.ClaimName, request.CdiDevices)
	return &drapb.NodeUnprepareResourceResponse{}, nil
}
