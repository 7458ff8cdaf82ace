package main

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"sync"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

var gaugeResource = schema.GroupResource{Group: groupName, Resource: "gauges"}

// history is how many changes a watch can be resumed from.
const history = 1000

// gauges keeps the objects in memory. Every change has a number, which is its resourceVersion.
type gauges struct {
	rest.TableConvertor

	mu       sync.Mutex
	revision int64
	objects  map[types.NamespacedName]*Gauge
	changes  []change
	watchers map[*watcher]struct{}
}

type change struct {
	revision int64
	event    watch.Event
}

var (
	_ rest.Scoper               = &gauges{}
	_ rest.Getter               = &gauges{}
	_ rest.Lister               = &gauges{}
	_ rest.Creater              = &gauges{}
	_ rest.Updater              = &gauges{}
	_ rest.Patcher              = &gauges{}
	_ rest.GracefulDeleter      = &gauges{}
	_ rest.CollectionDeleter    = &gauges{}
	_ rest.Watcher              = &gauges{}
	_ rest.SingularNameProvider = &gauges{}
	_ rest.ShortNamesProvider   = &gauges{}
)

func newGauges() *gauges {
	return &gauges{
		TableConvertor: rest.NewDefaultTableConvertor(gaugeResource),
		objects:        map[types.NamespacedName]*Gauge{},
		watchers:       map[*watcher]struct{}{},
	}
}

func (s *gauges) New() runtime.Object     { return &Gauge{} }
func (s *gauges) NewList() runtime.Object { return &GaugeList{} }
func (s *gauges) Destroy()                {}
func (s *gauges) NamespaceScoped() bool   { return true }
func (s *gauges) GetSingularName() string { return "gauge" }
func (s *gauges) ShortNames() []string    { return []string{"gg"} }

func key(ctx context.Context, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: request.NamespaceValue(ctx), Name: name}
}

func (s *gauges) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.objects[key(ctx, name)]
	if !ok {
		return nil, errors.NewNotFound(gaugeResource, name)
	}
	return found.DeepCopy(), nil
}

func (s *gauges) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list(filterOf(ctx, options)), nil
}

func (s *gauges) list(matches func(*Gauge) bool) *GaugeList {
	list := &GaugeList{Items: []Gauge{}}
	list.ResourceVersion = strconv.FormatInt(s.revision, 10)
	for _, object := range s.objects {
		if matches(object) {
			list.Items = append(list.Items, *object.DeepCopy())
		}
	}
	sort.Slice(list.Items, func(i, j int) bool {
		a, b := list.Items[i], list.Items[j]
		return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
	})
	return list
}

func filterOf(ctx context.Context, options *internalversion.ListOptions) func(*Gauge) bool {
	namespace := request.NamespaceValue(ctx)
	selector := labels.Everything()
	name := ""
	if options != nil && options.LabelSelector != nil {
		selector = options.LabelSelector
	}
	if options != nil && options.FieldSelector != nil {
		name, _ = options.FieldSelector.RequiresExactMatch("metadata.name")
	}
	return func(g *Gauge) bool {
		return (namespace == "" || g.Namespace == namespace) &&
			(name == "" || g.Name == name) && selector.Matches(labels.Set(g.Labels))
	}
}

func (s *gauges) Create(
	ctx context.Context, object runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (runtime.Object, error) {
	gauge := object.(*Gauge).DeepCopy()
	rest.FillObjectMetaSystemFields(gauge)
	gauge.Namespace = request.NamespaceValue(ctx)
	if gauge.Name == "" && gauge.GenerateName != "" {
		gauge.Name = gauge.GenerateName + uuid.NewString()[:5]
	}
	if gauge.Name == "" {
		return nil, errors.NewBadRequest("name is required")
	}
	if err := validate(ctx, gauge.DeepCopy()); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.objects[key(ctx, gauge.Name)]; ok {
		return nil, errors.NewAlreadyExists(gaugeResource, gauge.Name)
	}
	if len(options.DryRun) > 0 {
		return gauge, nil
	}
	s.commit(watch.Added, gauge)
	return gauge.DeepCopy(), nil
}

func (s *gauges) Update(
	ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, forceCreate bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	s.mu.Lock()
	held, ok := s.objects[key(ctx, name)]
	s.mu.Unlock()
	if !ok {
		if !forceCreate {
			return nil, false, errors.NewNotFound(gaugeResource, name)
		}
		object, err := info.UpdatedObject(ctx, &Gauge{})
		if err != nil {
			return nil, false, err
		}
		created, err := s.Create(ctx, object, create, &metav1.CreateOptions{DryRun: options.DryRun})
		return created, true, err
	}
	object, err := info.UpdatedObject(ctx, held.DeepCopy())
	if err != nil {
		return nil, false, err
	}
	gauge := object.(*Gauge).DeepCopy()
	if err := update(ctx, gauge.DeepCopy(), held.DeepCopy()); err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, ok := s.objects[key(ctx, name)]
	if !ok {
		return nil, false, errors.NewNotFound(gaugeResource, name)
	}
	if now != held || (gauge.ResourceVersion != "" && gauge.ResourceVersion != now.ResourceVersion) {
		return nil, false, errors.NewConflict(gaugeResource, name, fmt.Errorf("the object has been modified"))
	}
	if len(options.DryRun) > 0 {
		return gauge, false, nil
	}
	s.commit(watch.Modified, gauge)
	return gauge.DeepCopy(), false, nil
}

func (s *gauges) Delete(
	ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) (runtime.Object, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, ok := s.objects[key(ctx, name)]
	if !ok {
		return nil, false, errors.NewNotFound(gaugeResource, name)
	}
	if err := validate(ctx, held.DeepCopy()); err != nil {
		return nil, false, err
	}
	if p := options.Preconditions; p != nil && p.UID != nil && *p.UID != held.UID {
		return nil, false, errors.NewConflict(gaugeResource, name, fmt.Errorf("the UID in the precondition differs"))
	}
	if len(options.DryRun) == 0 {
		s.commit(watch.Deleted, held.DeepCopy())
	}
	return held.DeepCopy(), true, nil
}

func (s *gauges) DeleteCollection(
	ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
	selection *internalversion.ListOptions,
) (runtime.Object, error) {
	s.mu.Lock()
	list := s.list(filterOf(ctx, selection))
	s.mu.Unlock()
	for i := range list.Items {
		item := &list.Items[i]
		within := request.WithNamespace(ctx, item.Namespace)
		if _, _, err := s.Delete(within, item.Name, validate, options); err != nil && !errors.IsNotFound(err) {
			return nil, err
		}
	}
	return list, nil
}

// commit stores a change and tells the watchers; the lock is held.
func (s *gauges) commit(kind watch.EventType, gauge *Gauge) {
	s.revision++
	gauge.ResourceVersion = strconv.FormatInt(s.revision, 10)
	at := types.NamespacedName{Namespace: gauge.Namespace, Name: gauge.Name}
	if kind == watch.Deleted {
		delete(s.objects, at)
	} else {
		s.objects[at] = gauge
	}
	made := change{s.revision, watch.Event{Type: kind, Object: gauge.DeepCopy()}}
	s.changes = append(s.changes, made)
	if len(s.changes) > history {
		s.changes = s.changes[1:]
	}
	for w := range s.watchers {
		w.send(made.event)
	}
}

func (s *gauges) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &watcher{store: s, matches: filterOf(ctx, options), events: make(chan watch.Event, 2*history)}
	version := ""
	if options != nil {
		version = options.ResourceVersion
	}
	if version == "" || version == "0" {
		for _, item := range s.list(w.matches).Items {
			w.send(watch.Event{Type: watch.Added, Object: item.DeepCopy()})
		}
	} else {
		from, err := strconv.ParseInt(version, 10, 64)
		if err != nil {
			return nil, errors.NewBadRequest(fmt.Sprintf("resourceVersion: %v", err))
		}
		if oldest := s.revision - int64(len(s.changes)); from < oldest {
			return nil, errors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", from, oldest))
		}
		for _, past := range s.changes {
			if past.revision > from {
				w.send(past.event)
			}
		}
	}
	s.watchers[w] = struct{}{}
	return w, nil
}

type watcher struct {
	store   *gauges
	matches func(*Gauge) bool
	events  chan watch.Event
	stopped bool
}

// send drops a watcher that does not keep up; the store's lock is held.
func (w *watcher) send(event watch.Event) {
	if w.stopped || !w.matches(event.Object.(*Gauge)) {
		return
	}
	select {
	case w.events <- watch.Event{Type: event.Type, Object: event.Object.DeepCopyObject()}:
	default:
		w.end()
	}
}

func (w *watcher) end() {
	if !w.stopped {
		w.stopped = true
		delete(w.store.watchers, w)
		close(w.events)
	}
}

func (w *watcher) Stop() {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.end()
}

func (w *watcher) ResultChan() <-chan watch.Event { return w.events }
