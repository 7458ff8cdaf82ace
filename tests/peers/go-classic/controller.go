package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1alpha1 "k8s.io/api/resource/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/controller"
)

// handle travels from the controller to the node in the claim's status.
type handle struct {
	Node  string
	Slots int
	Env   map[string]string
}

// site is what a class says.
type site struct {
	nodes     []string
	slots     int
	shareable bool
	env       map[string]string
}

// wish is what a claim says.
type wish struct {
	slots int
	env   map[string]string
}

// taken is what one claim has.
type taken struct {
	node  string
	slots int
}

type slotDriver struct {
	name   string
	client kubernetes.Interface

	mutex sync.Mutex
	taken map[types.UID]taken
}

// allocate runs the controller until the context ends.
func allocate(ctx context.Context, name, kubeconfig, content string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType = content
	config.QPS, config.Burst = 100, 200
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	d := &slotDriver{name: name, client: client, taken: map[types.UID]taken{}}
	if err := d.learn(ctx); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 10*time.Minute)
	ctrl := controller.New(ctx, name, d, client, factory)
	factory.Start(ctx.Done())
	ctrl.Run(4)
	return nil
}

// learn finds out what was allocated by an earlier process.
func (d *slotDriver) learn(ctx context.Context) error {
	claims, err := d.client.ResourceV1alpha1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, claim := range claims.Items {
		if claim.Status.DriverName != d.name || claim.Status.Allocation == nil {
			continue
		}
		var h handle
		if err := json.Unmarshal([]byte(claim.Status.Allocation.ResourceHandle), &h); err != nil {
			return fmt.Errorf("handle of claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
		d.taken[claim.UID] = taken{h.Node, h.Slots}
	}
	fmt.Println("learned", len(d.taken))
	return nil
}

func (d *slotDriver) parameters(ctx context.Context, group, kind, namespace, name string) (map[string]string, error) {
	if group != "" || kind != "ConfigMap" {
		return nil, fmt.Errorf("parameters are in ConfigMaps, not in %s/%s", group, kind)
	}
	object, err := d.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return object.Data, nil
}

// number takes an entry out of the parameters.
func number(data map[string]string, key string, otherwise int) (int, error) {
	text, found := data[key]
	if !found {
		return otherwise, nil
	}
	delete(data, key)
	value, err := strconv.Atoi(text)
	if err != nil || value < 1 {
		return 0, fmt.Errorf("parameter %s: not a number of at least one: %q", key, text)
	}
	return value, nil
}

// GetClassParameters reads where slots are.
func (d *slotDriver) GetClassParameters(ctx context.Context, class *resourcev1alpha1.ResourceClass) (interface{}, error) {
	ref := class.ParametersRef
	if ref == nil {
		return nil, fmt.Errorf("class %s: parametersRef is missing", class.Name)
	}
	data, err := d.parameters(ctx, ref.APIGroup, ref.Kind, ref.Namespace, ref.Name)
	if err != nil {
		return nil, err
	}
	slots, err := number(data, "slots", 1)
	if err != nil {
		return nil, err
	}
	s := site{slots: slots, nodes: strings.Split(data["nodes"], ","), shareable: data["shareable"] == "true", env: data}
	delete(data, "nodes")
	delete(data, "shareable")
	return s, nil
}

// GetClaimParameters reads how many slots are wanted.
func (d *slotDriver) GetClaimParameters(ctx context.Context, claim *resourcev1alpha1.ResourceClaim, _ *resourcev1alpha1.ResourceClass, _ interface{}) (interface{}, error) {
	ref := claim.Spec.ParametersRef
	if ref == nil {
		return wish{slots: 1}, nil
	}
	data, err := d.parameters(ctx, ref.APIGroup, ref.Kind, claim.Namespace, ref.Name)
	if err != nil {
		return nil, err
	}
	slots, err := number(data, "slots", 1)
	return wish{slots: slots, env: data}, err
}

// free counts the slots of a node that claims other than these leave; the mutex is held.
func (d *slotDriver) free(s site, node string, except ...types.UID) int {
	if !slices.Contains(s.nodes, node) {
		return 0
	}
	left := s.slots
	for uid, t := range d.taken {
		if t.node == node && !slices.Contains(except, uid) {
			left -= t.slots
		}
	}
	return left
}

// Allocate takes slots of the selected node, or of any that has enough.
func (d *slotDriver) Allocate(_ context.Context, claim *resourcev1alpha1.ResourceClaim, claimParameters interface{}, _ *resourcev1alpha1.ResourceClass, classParameters interface{}, selectedNode string) (*resourcev1alpha1.AllocationResult, error) {
	s, w := classParameters.(site), claimParameters.(wish)
	d.mutex.Lock()
	defer d.mutex.Unlock()
	nodes := s.nodes
	if selectedNode != "" {
		nodes = []string{selectedNode}
	}
	if t, found := d.taken[claim.UID]; found && (selectedNode == "" || selectedNode == t.node) {
		nodes = []string{t.node}
	}
	i := slices.IndexFunc(nodes, func(node string) bool { return d.free(s, node, claim.UID) >= w.slots })
	if i < 0 {
		return nil, fmt.Errorf("%d slots are not free on %s", w.slots, strings.Join(nodes, ", "))
	}
	h := handle{Node: nodes[i], Slots: w.slots, Env: map[string]string{}}
	maps.Copy(h.Env, s.env)
	maps.Copy(h.Env, w.env)
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	d.taken[claim.UID] = taken{h.Node, h.Slots}
	fmt.Println("allocated", claim.Name, "on", h.Node, "selected", selectedNode)
	return &resourcev1alpha1.AllocationResult{
		ResourceHandle: string(text),
		Shareable:      s.shareable,
		AvailableOnNodes: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpIn, Values: []string{h.Node},
			}},
		}}},
	}, nil
}

// Deallocate gives the slots back.
func (d *slotDriver) Deallocate(_ context.Context, claim *resourcev1alpha1.ResourceClaim) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	delete(d.taken, claim.UID)
	fmt.Println("deallocated", claim.Name)
	return nil
}

// UnsuitableNodes names the nodes without slots for all claims of the pod.
func (d *slotDriver) UnsuitableNodes(_ context.Context, pod *corev1.Pod, claims []*controller.ClaimAllocation, potentialNodes []string) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	var own []types.UID
	var wanted int
	for _, claim := range claims {
		own = append(own, claim.Claim.UID)
		wanted += claim.ClaimParameters.(wish).slots
	}
	for _, claim := range claims {
		// The helper hands the same values to the next round.
		claim.UnsuitableNodes = nil
		for _, node := range potentialNodes {
			if d.free(claim.ClassParameters.(site), node, own...) < wanted {
				claim.UnsuitableNodes = append(claim.UnsuitableNodes, node)
			}
		}
		fmt.Println("unsuitable for", pod.Name, claim.PodClaimName, claim.UnsuitableNodes, "of", potentialNodes)
	}
	return nil
}
