// Command clientgo uses an API server the way programs built on client-go do, and exits non-zero when one of its ways
// does not work. It prints one line a step.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
)

const namespace = "clientgo"

type step struct {
	name string
	run  func(context.Context, *rest.Config) error
}

func main() {
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "path of the kubeconfig")
	klog.InitFlags(nil) // -v=8 shows each request
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	config.QPS = -1
	steps := []step{
		{"namespace", makeNamespace},
		{"typed", typed},
		{"protobuf", protobuf},
		{"conflict", conflict},
		{"patches", patches},
		{"apply", apply},
		{"pages", pages},
		{"watch", watches},
		{"informers", sharedInformers},
		{"dynamic", dynamicObjects},
		{"metadata", metadataOnly},
		{"discovery", discover},
		{"leader election", elect},
	}
	failed := false
	for _, s := range steps {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		if err := s.run(ctx, config); err != nil {
			fmt.Printf("FAIL %s: %v\n", s.name, err)
			failed = true
		} else {
			fmt.Printf("ok %s\n", s.name)
		}
		cancel()
	}
	if failed {
		os.Exit(1)
	}
}

func makeNamespace(ctx context.Context, config *rest.Config) error {
	client := kubernetes.NewForConfigOrDie(config)
	_, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func deployment(name string) *appsv1.Deployment {
	replicas := int32(0)
	podLabels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: podLabels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: podLabels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "c", Image: "example/none",
					Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
						"cpu": resource.MustParse("1500m"), "example.com/device": resource.MustParse("2"),
					}},
				}}},
			},
		},
	}
}

// lifecycle creates, reads, scales and deletes a deployment with a typed client.
func lifecycle(ctx context.Context, client kubernetes.Interface, name string) error {
	deployments := client.AppsV1().Deployments(namespace)
	made, err := deployments.Create(ctx, deployment(name), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	read, err := deployments.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if read.UID != made.UID || read.UID == "" {
		return fmt.Errorf("uid %q was read, %q made", read.UID, made.UID)
	}
	resources := read.Spec.Template.Spec.Containers[0].Resources
	if q := resources.Limits["example.com/device"]; q.Value() != 2 || len(resources.Requests) != 0 {
		return fmt.Errorf("the limits came back as %v", resources)
	}
	if read.Spec.Strategy.RollingUpdate == nil || *read.Spec.RevisionHistoryLimit != 10 {
		return fmt.Errorf("defaults are missing: %+v", read.Spec)
	}
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		scale, err := deployments.GetScale(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		scale.Spec.Replicas = 0
		_, err = deployments.UpdateScale(ctx, name, scale, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("scale: %w", err)
	}
	list, err := deployments.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return err
	}
	if len(list.Items) != 1 || list.ResourceVersion == "" {
		return fmt.Errorf("list has %d items, version %q", len(list.Items), list.ResourceVersion)
	}
	foreground := metav1.DeletePropagationForeground
	if err := deployments.Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: &foreground, Preconditions: metav1.NewUIDPreconditions(string(made.UID)),
	}); err != nil {
		return err
	}
	return until(ctx, "the deployment to be gone", func() (bool, error) {
		_, err := deployments.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

func typed(ctx context.Context, config *rest.Config) error {
	return lifecycle(ctx, kubernetes.NewForConfigOrDie(config), "typed")
}

func protobufConfig(config *rest.Config) *rest.Config {
	c := rest.CopyConfig(config)
	c.ContentType = "application/vnd.kubernetes.protobuf"
	c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return c
}

func protobuf(ctx context.Context, config *rest.Config) error {
	return lifecycle(ctx, kubernetes.NewForConfigOrDie(protobufConfig(config)), "protobuf")
}

// conflict lets several writers count in one object; each increment must be kept.
func conflict(ctx context.Context, config *rest.Config) error {
	maps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(namespace)
	_, err := maps.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "counter"}, Data: map[string]string{"n": "0"},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	const writers, rounds = 4, 10
	var group sync.WaitGroup
	problems := make(chan error, writers*rounds)
	for range writers {
		group.Go(func() {
			for range rounds {
				problems <- retry.OnError(retry.DefaultBackoff, func(error) bool { return true }, func() error {
					counter, err := maps.Get(ctx, "counter", metav1.GetOptions{})
					if err != nil {
						return err
					}
					var n int
					if _, err := fmt.Sscan(counter.Data["n"], &n); err != nil {
						return err
					}
					counter.Data["n"] = fmt.Sprint(n + 1)
					_, err = maps.Update(ctx, counter, metav1.UpdateOptions{})
					return err
				})
			}
		})
	}
	group.Wait()
	close(problems)
	kept := 0
	for err := range problems {
		if err == nil {
			kept++
		} else if !apierrors.IsConflict(err) {
			return err
		}
	}
	counter, err := maps.Get(ctx, "counter", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if counter.Data["n"] != fmt.Sprint(kept) {
		return fmt.Errorf("%d increments were acknowledged, %s kept", kept, counter.Data["n"])
	}
	return maps.Delete(ctx, "counter", metav1.DeleteOptions{})
}

func patches(ctx context.Context, config *rest.Config) error {
	client := kubernetes.NewForConfigOrDie(config)
	deployments := client.AppsV1().Deployments(namespace)
	if _, err := deployments.Create(ctx, deployment("patched"), metav1.CreateOptions{}); err != nil {
		return err
	}
	defer deployments.Delete(ctx, "patched", metav1.DeleteOptions{})
	strategic := `{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"example/side"}]}}}}`
	got, err := deployments.Patch(ctx, "patched", types.StrategicMergePatchType, []byte(strategic), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	if n := len(got.Spec.Template.Spec.Containers); n != 2 {
		return fmt.Errorf("a strategic merge patch left %d containers, not 2", n)
	}
	json := `[{"op":"test","path":"/spec/template/spec/containers/0/name","value":"side"},
		{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}]`
	got, err = deployments.Patch(ctx, "patched", types.JSONPatchType, []byte(json), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	if got.Annotations["a"] != "b" {
		return fmt.Errorf("a JSON patch left annotations %v", got.Annotations)
	}
	got, err = deployments.Patch(ctx, "patched", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"a":null}}}`), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	if _, there := got.Annotations["a"]; there {
		return fmt.Errorf("a merge patch left annotations %v", got.Annotations)
	}
	return nil
}

// apply checks ownership: conflicts, force, giving up a field.
func apply(ctx context.Context, config *rest.Config) error {
	maps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(namespace)
	one := applycorev1.ConfigMap("applied", namespace).WithData(map[string]string{"a": "1", "b": "1"})
	if _, err := maps.Apply(ctx, one, metav1.ApplyOptions{FieldManager: "one"}); err != nil {
		return err
	}
	two := applycorev1.ConfigMap("applied", namespace).WithData(map[string]string{"a": "2"})
	_, err := maps.Apply(ctx, two, metav1.ApplyOptions{FieldManager: "two"})
	if !apierrors.IsConflict(err) {
		return fmt.Errorf("the second manager was to meet a conflict, got %v", err)
	}
	got, err := maps.Apply(ctx, two, metav1.ApplyOptions{FieldManager: "two", Force: true})
	if err != nil {
		return err
	}
	if got.Data["a"] != "2" || got.Data["b"] != "1" {
		return fmt.Errorf("after a forced apply data is %v", got.Data)
	}
	extracted, err := applycorev1.ExtractConfigMap(got, "one")
	if err != nil {
		return err
	}
	if _, owns := extracted.Data["a"]; owns || extracted.Data["b"] != "1" {
		return fmt.Errorf("manager one owns %v", extracted.Data)
	}
	got, err = maps.Apply(ctx, applycorev1.ConfigMap("applied", namespace), metav1.ApplyOptions{FieldManager: "one"})
	if err != nil {
		return err
	}
	if _, there := got.Data["b"]; there {
		return fmt.Errorf("a field that its only owner gave up is still there: %v", got.Data)
	}
	return maps.Delete(ctx, "applied", metav1.DeleteOptions{})
}

func pages(ctx context.Context, config *rest.Config) error {
	maps := kubernetes.NewForConfigOrDie(protobufConfig(config)).CoreV1().ConfigMaps(namespace)
	const count = 25
	for i := range count {
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("page-%02d", i), Labels: map[string]string{"paged": "yes"},
		}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	seen := 0
	p := pager.New(pager.SimplePageFunc(func(opts metav1.ListOptions) (runtime.Object, error) {
		return maps.List(ctx, opts)
	}))
	p.PageSize = 4
	err := p.EachListItem(ctx, metav1.ListOptions{LabelSelector: "paged=yes"}, func(runtime.Object) error {
		seen++
		return nil
	})
	if err != nil {
		return err
	}
	if seen != count {
		return fmt.Errorf("%d of %d objects were on the pages", seen, count)
	}
	return maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "paged=yes"})
}

func watches(ctx context.Context, config *rest.Config) error {
	for _, c := range []*rest.Config{config, protobufConfig(config)} {
		maps := kubernetes.NewForConfigOrDie(c).CoreV1().ConfigMaps(namespace)
		list, err := maps.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		w, err := maps.Watch(ctx, metav1.ListOptions{
			ResourceVersion: list.ResourceVersion, LabelSelector: "watched", AllowWatchBookmarks: true,
		})
		if err != nil {
			return err
		}
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "watched", Labels: map[string]string{"watched": ""}}}
		if m, err = maps.Create(ctx, m, metav1.CreateOptions{}); err != nil {
			return err
		}
		m.Data = map[string]string{"k": "v"}
		if m, err = maps.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
			return err
		}
		m.Labels = nil // leaves the selection: the watcher sees it deleted
		if _, err = maps.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
			return err
		}
		for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
			got, err := nextEvent(ctx, w)
			if err != nil {
				return err
			}
			if got != want {
				return fmt.Errorf("%s: got event %s, want %s", c.ContentType, got, want)
			}
		}
		w.Stop()
		if err := maps.Delete(ctx, "watched", metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func nextEvent(ctx context.Context, w watch.Interface) (watch.EventType, error) {
	for {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case event, open := <-w.ResultChan():
			if !open {
				return "", errors.New("the watch ended")
			}
			if event.Type != watch.Bookmark {
				return event.Type, nil
			}
		}
	}
}

func sharedInformers(ctx context.Context, config *rest.Config) error {
	client := kubernetes.NewForConfigOrDie(protobufConfig(config))
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	var added, updated, deleted atomic.Int32
	informer := factory.Core().V1().ConfigMaps().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { added.Add(1) },
		UpdateFunc: func(any, any) { updated.Add(1) },
		DeleteFunc: func(any) { deleted.Add(1) },
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	factory.Start(ctx.Done())
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return fmt.Errorf("the informer of %v did not synchronize", kind)
		}
	}
	lister := factory.Core().V1().ConfigMaps().Lister().ConfigMaps(namespace)
	known, err := lister.List(labels.Everything())
	if err != nil {
		return err
	}
	before := int32(len(known)) // the handlers are called for these too, maybe later
	m, err := client.CoreV1().ConfigMaps(namespace).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "informed"}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	m.Data = map[string]string{"k": "v"}
	if _, err = client.CoreV1().ConfigMaps(namespace).Update(ctx, m, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if err := until(ctx, "the informer to see the update", func() (bool, error) {
		m, err := lister.Get("informed")
		return err == nil && m.Data["k"] == "v" && added.Load() == before+1, nil
	}); err != nil {
		return err
	}
	if err = client.CoreV1().ConfigMaps(namespace).Delete(ctx, "informed", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return until(ctx, "the informer to see the deletion", func() (bool, error) {
		left, err := lister.List(labels.Everything())
		return deleted.Load() == 1 && updated.Load() >= 1 && len(left) == int(before), err
	})
}

func dynamicObjects(ctx context.Context, config *rest.Config) error {
	client := dynamic.NewForConfigOrDie(config)
	crds := client.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "gadgets.clientgo.davit.dev"},
		"spec": map[string]any{
			"group": "clientgo.davit.dev", "scope": "Namespaced",
			"names": map[string]any{"plural": "gadgets", "kind": "Gadget", "singular": "gadget", "listKind": "GadgetList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object",
					"properties": map[string]any{
						"spec": map[string]any{"type": "object", "properties": map[string]any{
							"size": map[string]any{"type": "integer", "default": int64(3), "maximum": int64(10)},
						}},
						"status": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
					},
				}},
			}},
		},
	}}
	if _, err := crds.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := until(ctx, "the definition to be established", func() (bool, error) {
		got, err := crds.Get(ctx, "gadgets.clientgo.davit.dev", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		conditions, _, _ := unstructured.NestedSlice(got.Object, "status", "conditions")
		for _, c := range conditions {
			if m := c.(map[string]any); m["type"] == "Established" && m["status"] == "True" {
				return true, nil
			}
		}
		return false, nil
	}); err != nil {
		return err
	}
	kind := schema.GroupVersionResource{Group: "clientgo.davit.dev", Version: "v1", Resource: "gadgets"}
	gadgets := client.Resource(kind).Namespace(namespace)
	gadget := func(spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "clientgo.davit.dev/v1", "kind": "Gadget",
			"metadata": map[string]any{"name": "g"}, "spec": spec,
		}}
	}
	if _, err := gadgets.Create(ctx, gadget(map[string]any{"size": int64(11)}), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		return fmt.Errorf("a size above the maximum was to be invalid, got %v", err)
	}
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, namespace, nil)
	informer := factory.ForResource(kind)
	informer.Informer()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	made, err := gadgets.Create(ctx, gadget(map[string]any{}), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if size, _, _ := unstructured.NestedInt64(made.Object, "spec", "size"); size != 3 {
		return fmt.Errorf("the default was not set: %v", made.Object)
	}
	if err := unstructured.SetNestedField(made.Object, "yes", "status", "ready"); err != nil {
		return err
	}
	if _, err := gadgets.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	applied := gadget(map[string]any{"size": int64(5)})
	if _, err := gadgets.Apply(ctx, "g", applied, metav1.ApplyOptions{FieldManager: "clientgo", Force: true}); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	if err := until(ctx, "the informer to see the gadget", func() (bool, error) {
		object, err := informer.Lister().ByNamespace(namespace).Get("g")
		if err != nil {
			return false, nil
		}
		u := object.(*unstructured.Unstructured)
		size, _, _ := unstructured.NestedInt64(u.Object, "spec", "size")
		ready, _, _ := unstructured.NestedString(u.Object, "status", "ready")
		return size == 5 && ready == "yes", nil
	}); err != nil {
		return err
	}
	if err := crds.Delete(ctx, "gadgets.clientgo.davit.dev", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return until(ctx, "the kind to be gone", func() (bool, error) {
		_, err := gadgets.List(ctx, metav1.ListOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

func metadataOnly(ctx context.Context, config *rest.Config) error {
	client := metadata.NewForConfigOrDie(metadata.ConfigFor(config))
	got, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).
		Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if got.Name != namespace || got.UID == "" {
		return fmt.Errorf("got %+v", got)
	}
	list, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).
		List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(list.Items) < 2 {
		return fmt.Errorf("%d namespaces are listed", len(list.Items))
	}
	return nil
}

func discover(_ context.Context, config *rest.Config) error {
	client := kubernetes.NewForConfigOrDie(config)
	cached := memory.NewMemCacheClient(client.Discovery())
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cached)
	mapping, err := mapper.RESTMapping(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	if err != nil {
		return err
	}
	if mapping.Resource.Resource != "deployments" || mapping.Resource.Version != "v1" {
		return fmt.Errorf("deployments map to %v", mapping.Resource)
	}
	if _, _, err := client.Discovery().ServerGroupsAndResources(); err != nil {
		return err
	}
	if _, err := client.Discovery().OpenAPISchema(); err != nil {
		return fmt.Errorf("OpenAPI v2: %w", err)
	}
	paths, err := client.Discovery().OpenAPIV3().Paths()
	if err != nil {
		return err
	}
	if paths["apis/apps/v1"] == nil {
		return errors.New("OpenAPI v3 has no apps/v1")
	}
	_, err = paths["apis/apps/v1"].Schema("application/json")
	return err
}

// elect runs two candidates; the second leads only after the first has given up.
func elect(ctx context.Context, config *rest.Config) error {
	client := kubernetes.NewForConfigOrDie(config)
	var leaders atomic.Int32
	candidate := func(ctx context.Context, id string, led chan<- string) {
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Name: "clientgo", Namespace: namespace}, Client: client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: id},
			},
			ReleaseOnCancel: true, LeaseDuration: 4 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: 500 * time.Millisecond,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					if leaders.Add(1) > 1 {
						led <- "two at once"
						return
					}
					led <- id
					<-ctx.Done()
				},
				OnStoppedLeading: func() {},
			},
		})
	}
	led := make(chan string, 4)
	first, stopFirst := context.WithCancel(ctx)
	defer stopFirst()
	firstDone := make(chan struct{})
	go func() { candidate(first, "one", led); close(firstDone) }()
	if got := <-led; got != "one" {
		return fmt.Errorf("%s leads", got)
	}
	second, stopSecond := context.WithCancel(ctx)
	defer stopSecond()
	go candidate(second, "two", led)
	select {
	case got := <-led:
		return fmt.Errorf("%s leads while one does", got)
	case <-time.After(2 * time.Second):
	}
	leaders.Add(-1)
	stopFirst()
	<-firstDone
	select {
	case got := <-led:
		if got != "two" {
			return fmt.Errorf("%s leads", got)
		}
	case <-ctx.Done():
		return errors.New("nobody took the lease over")
	}
	return nil
}

func until(ctx context.Context, what string, done func() (bool, error)) error {
	for {
		ok, err := done()
		if err != nil {
			return err
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited too long for %s", what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
