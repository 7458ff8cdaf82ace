package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/conversion"
)

const group = "operator.davit.dev"

var (
	v1Version    = schema.GroupVersion{Group: group, Version: "v1"}
	alphaVersion = schema.GroupVersion{Group: group, Version: "v1alpha1"}
)

// Fleet is the stored form: so many config maps, one for each member.
type Fleet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   FleetSpec   `json:"spec,omitempty"`
	Status FleetStatus `json:"status,omitempty"`
}

// FleetSpec is what is wanted.
type FleetSpec struct {
	Replicas *int32 `json:"replicas,omitempty"`
	Color    string `json:"color,omitempty"`
}

// FleetStatus is what is there.
type FleetStatus struct {
	Replicas   int32              `json:"replicas"`
	Selector   string             `json:"selector,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// FleetList is a list of fleets.
type FleetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Fleet `json:"items"`
}

// Hub marks the version that the others convert to.
func (*Fleet) Hub() {}

func (f *Fleet) deepCopy() *Fleet {
	out := *f
	f.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	if f.Spec.Replicas != nil {
		n := *f.Spec.Replicas
		out.Spec.Replicas = &n
	}
	out.Status.Conditions = make([]metav1.Condition, len(f.Status.Conditions))
	for i := range f.Status.Conditions {
		f.Status.Conditions[i].DeepCopyInto(&out.Status.Conditions[i])
	}
	return &out
}

// DeepCopyObject is asked for by the client library.
func (f *Fleet) DeepCopyObject() runtime.Object { return f.deepCopy() }

// DeepCopyObject is asked for by the client library.
func (l *FleetList) DeepCopyObject() runtime.Object {
	out := *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Fleet, len(l.Items))
	for i := range l.Items {
		out.Items[i] = *l.Items[i].deepCopy()
	}
	return &out
}

// FleetAlpha is the older form: its color is called paint, its size count.
type FleetAlpha struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   FleetAlphaSpec `json:"spec,omitempty"`
	Status FleetStatus    `json:"status,omitempty"`
}

// FleetAlphaSpec is what was wanted once.
type FleetAlphaSpec struct {
	Count *int32 `json:"count,omitempty"`
	Paint string `json:"paint,omitempty"`
}

// DeepCopyObject is asked for by the client library.
func (f *FleetAlpha) DeepCopyObject() runtime.Object {
	out := *f
	f.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	if f.Spec.Count != nil {
		n := *f.Spec.Count
		out.Spec.Count = &n
	}
	return &out
}

// ConvertTo makes the stored form of it.
func (f *FleetAlpha) ConvertTo(hub conversion.Hub) error {
	to := hub.(*Fleet)
	f.ObjectMeta.DeepCopyInto(&to.ObjectMeta)
	to.Spec = FleetSpec{Replicas: f.Spec.Count, Color: f.Spec.Paint}
	to.Status = f.Status
	return nil
}

// ConvertFrom reads the stored form.
func (f *FleetAlpha) ConvertFrom(hub conversion.Hub) error {
	from := hub.(*Fleet)
	from.ObjectMeta.DeepCopyInto(&f.ObjectMeta)
	f.Spec = FleetAlphaSpec{Count: from.Spec.Replicas, Paint: from.Spec.Color}
	f.Status = from.Status
	return nil
}

func addTypes(scheme *runtime.Scheme) {
	scheme.AddKnownTypes(v1Version, &Fleet{}, &FleetList{})
	scheme.AddKnownTypeWithName(alphaVersion.WithKind("Fleet"), &FleetAlpha{})
	metav1.AddToGroupVersion(scheme, v1Version)
	metav1.AddToGroupVersion(scheme, alphaVersion)
}
