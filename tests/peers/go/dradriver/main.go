// Command dradriver is a DRA driver built on the official helper: it publishes so many devices of one node, writes a
// CDI file for each prepared claim, and keeps on disk what it prepared, so that a second instance can take over.
//
// SIGUSR1 makes the next preparation fail once.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"
)

type driver struct {
	name   string
	cdiDir string
	fail   atomic.Bool
}

type options struct {
	name, node, kubeconfig, kubelet, cdi, instance string
	count                                          int
}

func main() {
	var o options
	flag.StringVar(&o.name, "driver", "gadget.peers.davit.dev", "name of the driver")
	flag.StringVar(&o.node, "node", "", "name of the node")
	flag.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "path of the kubeconfig")
	flag.StringVar(&o.kubelet, "kubelet-dir", "/var/lib/kubelet", "the kubelet's folder")
	flag.StringVar(&o.cdi, "cdi-dir", "/var/run/cdi", "where CDI files are written")
	flag.StringVar(&o.instance, "instance", "", "uid of this instance, for a rolling update")
	flag.IntVar(&o.count, "count", 4, "how many devices")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(o options) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	d := &driver{name: o.name, cdiDir: o.cdi}
	plugins := filepath.Join(o.kubelet, "plugins", o.name)
	if err := os.MkdirAll(plugins, 0o750); err != nil {
		return err
	}
	choices := []kubeletplugin.Option{
		kubeletplugin.DriverName(o.name),
		kubeletplugin.NodeName(o.node),
		kubeletplugin.KubeClient(kubernetes.NewForConfigOrDie(config)),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(o.kubelet, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(plugins),
	}
	if o.instance != "" {
		choices = append(choices, kubeletplugin.RollingUpdate(types.UID(o.instance)))
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	helper, err := kubeletplugin.Start(ctx, d, choices...)
	if err != nil {
		return err
	}
	defer helper.Stop()
	if err := helper.PublishResources(ctx, inventory(o.node, o.count)); err != nil {
		return err
	}
	fmt.Println("published")
	fails := make(chan os.Signal, 1)
	signal.Notify(fails, syscall.SIGUSR1)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-fails:
			d.fail.Store(true)
			fmt.Println("will fail once")
		}
	}
}

func inventory(node string, count int) resourceslice.DriverResources {
	var devices []resourceapi.Device
	for i := range count {
		devices = append(devices, resourceapi.Device{
			Name: fmt.Sprintf("gadget-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"index":   {IntValue: ptr.To(int64(i))},
				"model":   {StringValue: ptr.To([]string{"plain", "fancy"}[i%2])},
				"version": {VersionValue: ptr.To("1.2.3")},
				"numa":    {IntValue: ptr.To(int64(0))},
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				"memory": {Value: resource.MustParse(fmt.Sprintf("%dGi", 8*(i+1)))},
			},
		})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		node: {Slices: []resourceslice.Slice{{Devices: devices}}},
	}}
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

func (d *driver) cdiFile(uid types.UID) string {
	return filepath.Join(d.cdiDir, fmt.Sprintf("peer-%s-%s.json", d.name, uid))
}

// PrepareResourceClaims writes the CDI file of each claim.
func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	result := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		if d.fail.CompareAndSwap(true, false) {
			fmt.Println("failed", claim.Name)
			result[claim.UID] = kubeletplugin.PrepareResult{Err: fmt.Errorf("told to fail")}
			continue
		}
		devices, err := d.prepare(claim)
		result[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
		fmt.Println("prepared", claim.Name, len(devices))
	}
	return result, nil
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	spec := cdiSpec{Version: "0.6.0", Kind: d.name + "/claim"}
	var prepared []kubeletplugin.Device
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != d.name {
			continue
		}
		name := fmt.Sprintf("%s-%s", claim.UID, result.Device)
		variable := strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(result.Device))
		spec.Devices = append(spec.Devices, cdiDevice{name, cdiEdits{Env: []string{
			fmt.Sprintf("PEER_%s=%s", variable, claim.Name),
		}}})
		prepared = append(prepared, kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device,
			CDIDeviceIDs: []string{spec.Kind + "=" + name}, ShareID: result.ShareID,
		})
	}
	if err := os.MkdirAll(d.cdiDir, 0o755); err != nil {
		return nil, err
	}
	bytes, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	temporary := d.cdiFile(claim.UID) + ".tmp"
	if err := os.WriteFile(temporary, bytes, 0o644); err != nil {
		return nil, err
	}
	return prepared, os.Rename(temporary, d.cdiFile(claim.UID))
}

// UnprepareResourceClaims removes the CDI file of each claim.
func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	result := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(d.cdiFile(claim.UID))
		if os.IsNotExist(err) {
			err = nil
		}
		result[claim.UID] = err
		fmt.Println("unprepared", claim.Name)
	}
	return result, nil
}

// HandleError ends the process when retrying would not help.
func (d *driver) HandleError(_ context.Context, err error, message string) {
	fmt.Fprintln(os.Stderr, message, err)
}
